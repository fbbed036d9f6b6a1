"""A run writes down where its time goes, and its verdict, and goes on with both when resumed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import resolve
from stoker.runs.reader import read_timeline
from stoker.train.agent import PPO
from stoker.train.start import resume, train


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    given = {"env": "CartPole-v1", "device": "cpu", "timesteps": 2048, "n_envs": 4, "n_steps": 128}
    given |= {"eval_episodes": 0, "runs_dir": str(tmp_path), "run_name": "run", "pool": "inline"}
    return {**given, **more}


def status_of(run: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((run / "status.json").read_text())
    return status


@pytest.mark.parametrize("collect", ["step", "overlap"])
def test_every_phase_of_every_thread_is_on_the_timeline(tmp_path: Path, collect: str) -> None:
    outcome = train(resolve(settings(tmp_path, collect=collect)))
    found = read_timeline(tmp_path / "run")
    threads = {name for each in found for name in each.threads}
    assert threads == ({"learner"} if collect == "step" else {"learner", "collector"})
    covered = sum(each.seconds for each in found)
    assert found[0].at + covered >= outcome.wall_s - 1e-3
    for each, thread in itertools.product(found, threads):
        assert sum(each.threads[thread].values()) <= each.seconds + 1e-3
    phases = {phase for each in found for phase in each.threads["learner"]}
    assert {"update", "save"} <= phases
    assert outcome.verdict is not None
    assert status_of(tmp_path / "run")["verdict"] == outcome.verdict.paragraph


def test_a_resumed_run_goes_on_with_its_timeline(tmp_path: Path) -> None:
    first = train(resolve(settings(tmp_path)))
    before = read_timeline(tmp_path / "run")
    second = resume(tmp_path / "run", timesteps=4096)
    found = read_timeline(tmp_path / "run")
    assert found[: len(before) - 1] == before[:-1]
    assert found[-1].at + found[-1].seconds >= second.wall_s - 1e-3 > first.wall_s
    assert [each.at for each in found] == sorted({each.at for each in found})


def test_a_run_that_is_not_watched_has_none(tmp_path: Path) -> None:
    train(resolve(settings(tmp_path, timesteps=512, monitor=False)))
    assert read_timeline(tmp_path / "run") == []
    assert status_of(tmp_path / "run")["verdict"].startswith("Most time goes to")


def test_a_model_without_a_folder_samples_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.monitor.sampler.Sampler.start", lambda self: pytest.fail("started"))
    with PPO("MlpPolicy", "CartPole-v1", device="cpu", eval_episodes=0, n_steps=64) as model:
        model.learn(64)


def test_a_model_that_learns_on_in_its_folder_has_one_timeline(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"runs_dir": str(tmp_path), "run_name": "run", "eval_episodes": 0}
    with PPO("MlpPolicy", "CartPole-v1", device="cpu", n_envs=1, n_steps=256, **kept) as model:
        model.learn(512)
        before = read_timeline(tmp_path / "run")
        model.learn(512, reset_num_timesteps=False)
    found = read_timeline(tmp_path / "run")
    assert before
    assert sum(each.seconds for each in found) > sum(each.seconds for each in before)
    assert [each.at for each in found] == sorted({each.at for each in found})


def test_the_status_says_which_hardware_the_figures_are_of(tmp_path: Path) -> None:
    train(resolve(settings(tmp_path, timesteps=512)))
    status = status_of(tmp_path / "run")
    assert status["gpu"] is None
    assert status["cores"] >= 1
