"""What a sweep brings: its best settings against the defaults, on seeds that it has not seen.

On the way two trials are killed with SIGKILL; what the sweep counts in the end is told. And how
much sooner trials are done that are agents of one population, instead of a process each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.record import Cases, Row
from stoker.config.load import from_flat
from stoker.sweep.course import Course
from stoker.sweep.ledger import Ledger
from stoker.sweep.plan import Plan, settings_for
from stoker.train.progress import Progress
from stoker.train.start import Audience, train

_ENV = "CartPole-v1"
_TRIALS, _JOBS, _SEEDS, _BUDGET_S = 40, 2, 2, 5.0
_KILLED = (5, 12)
"""Trials that are killed, by number."""
_UNSEEN = range(1000, 1010)
_SPACE = """
n_envs: [4, 8, 16, 32]
n_steps: [32, 64, 128, 256]
n_epochs: {low: 2, high: 16}
batch_size: [64, 128, 256, 512]
learning_rate: {low: 1e-4, high: 1e-2, log: true}
ent_coef: {low: 1e-5, high: 0.1, log: true}
network_arch: ["32,32", "64,64", "128,128"]
"""
_WORDS = (
    f"sweep --env {_ENV} --trials {_TRIALS} --jobs {_JOBS} --seeds {_SEEDS} --budget {_BUDGET_S}s "
    "--space space.yaml --name s --device cpu --pool inline --json"
)
_SCALARS = """
learning_rate: {low: 1e-4, high: 1e-2, log: true}
ent_coef: {low: 1e-5, high: 0.05, log: true}
"""
_CROWD_TRIALS, _CROWD_SEEDS, _CROWD_STEPS = 16, 2, 20_000
_CROWD = (
    f"sweep --env tensor/CartPole-v1 --trials {_CROWD_TRIALS} --seeds {_CROWD_SEEDS} --timesteps "
    f"{_CROWD_STEPS} --n-envs 8 --n-steps 64 --batch-size 128 --network-arch 64,64 --pruner none "
    "--space space.yaml --name s --device cpu --json"
)


class _UntilTime(Audience):
    """Stops a run when its time is up."""

    def __init__(self, course: Course) -> None:
        self.course = course

    def progresses(self, progress: Progress) -> bool:
        line = {"wall_s": progress.wall_s, "env_steps": progress.env_steps, **progress.metrics}
        self.course.note(line)
        return not self.course.over


def _sweep(folder: Path) -> dict[str, Any]:
    """Its summary, after two trials of it were killed."""
    (folder / "space.yaml").write_text(_SPACE)
    command = [sys.executable, "-m", "stoker", *_WORDS.split()]
    left = set(_KILLED)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        while left and process.poll() is None:
            time.sleep(0.1)
            left -= {number for number in left if _kill(folder, number)}
        out, _ = process.communicate()
    found: dict[str, Any] = json.loads(out)
    return found


def _kill(folder: Path, number: int) -> bool:
    """Whether the trial was there to be killed."""
    status = folder / f"runs/s/trials/trial-{number:04d}-s0/status.json"
    if not status.exists():
        return False
    os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
    return True


def _rewards(plan: Plan, drawn: Mapping[str, Any], folder: Path) -> list[float]:
    """On unseen seeds, when the budget is up."""
    found = []
    for seed in _UNSEEN:
        settings = settings_for(plan.base, drawn, seed) | {"runs_dir": str(folder / "unseen")}
        follows = _UntilTime(Course(plan.horizon))
        train(from_flat({**settings, "run_name": f"{bool(drawn)}-{seed}"}), audience=follows)
        found.append(follows.course.reward or 0.0)
    return found


def _against_defaults() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        found = _sweep(folder)
        took = time.monotonic() - began
        plan = Ledger.load(f"sqlite:///{folder / 'runs/s/study.db'}", "s").plan
        best = _rewards(plan, found["best"]["drawn"], folder)
        usual = _rewards(plan, {}, folder)
    counted = {name: found[name] for name in ("done", "complete", "pruned", "failed")}
    yield Row(
        "sweep",
        f"{_TRIALS} trials of {_ENV}, {_BUDGET_S:g} s a seed",
        round(fmean(best), 1),
        f"reward after {_BUDGET_S:g} s, mean of {len(_UNSEEN)} unseen seeds",
        round(fmean(usual), 1),
        "the defaults",
        round(fmean(best) / fmean(usual), 3),
        details={
            "sweep": {**counted, "killed": len(_KILLED), "took_s": round(took, 1)},
            "best": found["best"]["drawn"],
            "importances": found["importances"],
            "deviation": {"ours": round(stdev(best), 1), "peer": round(stdev(usual), 1)},
        },
    )


def _took(words: str) -> tuple[float, float]:
    """Seconds of a sweep, and its best reward."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "space.yaml").write_text(_SCALARS)
        command, began = [sys.executable, "-m", "stoker", *words.split()], time.monotonic()
        done = subprocess.run(command, cwd=name, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        assert found["complete"] == _CROWD_TRIALS, found
        return time.monotonic() - began, found["best"]["value"]


def _in_a_crowd() -> Iterator[Row]:
    agents = _CROWD_TRIALS * _CROWD_SEEDS // 2  # two processes, as the others are
    crowd, crowd_best = _took(f"{_CROWD} --jobs {_JOBS} --population {agents}")
    apart, apart_best = _took(f"{_CROWD} --jobs {_JOBS}")
    yield Row(
        "sweep",
        f"{_CROWD_TRIALS} trials as agents of populations, {_CROWD_SEEDS} x {_CROWD_STEPS:,} steps",
        round(_CROWD_TRIALS / crowd * 60, 2),
        "trials a minute",
        round(_CROWD_TRIALS / apart * 60, 2),
        "a process a seed",
        round(apart / crowd, 2),
        details={
            "seconds": {"ours": round(crowd, 1), "peer": round(apart, 1)},
            "best_reward": {"ours": round(crowd_best, 1), "peer": round(apart_best, 1)},
        },
    )


CASES: Cases = {"defaults": _against_defaults, "population": _in_a_crowd}
