"""Runs on disk with figures that one can recognise, made without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.runs.folder import RunFolder
from stoker.runs.recorder import Recorder
from stoker.runs.timeline import TimelineFile
from stoker.types import Stretch

VERDICT = "Most time goes to updates, 60%."


def status(**more: Any) -> dict[str, Any]:
    known = {"state": "finished", "env_steps": 20_000, "sps": 200.0, "wall_s": 100.0, "gpu": "H200"}
    told = {"cores": 16, "verdict": VERDICT, "trouble": None, "overlap_efficiency": 0.75}
    return {**known, **told, "rollout/ep_rew_mean": 475.5, "eval/mean_reward": 500.0, **more}


def stretches(seconds: float = 100.0, gpu: bool = True) -> list[Stretch]:
    """A collector that steps half of the time, and a learner that learns 60 % of it."""
    learner, collector = {"wait": 0.4, "update": 0.6}, {"env": 0.5}
    threads = {"learner": learner, "collector": collector}
    figures = {"busy": 0.5, "sm_active": 0.25, "memory_used_gib": 20.0, "power_w": 300.0}
    return [
        Stretch(float(second), 1.0, threads, figures if gpu else {}, {"cpu": 0.8})
        for second in range(round(seconds))
    ]


def make_run(
    runs_dir: Path,
    name: str = "run",
    env: str = "CartPole-v1",
    timeline: list[Stretch] | None = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A run that trained for 100 s, on a GPU that was 50 % busy and took 300 W."""
    folder = RunFolder.create(runs_dir, name)
    folder.write_config({"env": env, **(config or {})})
    folder.write_status(status(**more))
    recorder = Recorder(folder)
    for step in range(1, 11):
        recorder.record(2000 * step, {"rollout/ep_rew_mean": 50.0 * step, "time/fps": 200.0})
    recorder.close()
    file = TimelineFile(folder)
    file.add(stretches() if timeline is None else timeline)
    file.close()
    return folder.path
