"""Does a policy that is one iteration late learn as well, and how much sooner is it there?

The same steps and settings, in step and overlapped, five seeds each: the evaluated reward with its
95 % confidence interval, and the wall-clock time until training episodes reach a threshold.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.record import Cases, Row
from stoker.runs.reader import read_metrics

SEEDS = range(5)
AT_ONCE = 5  # both modes share the machine in the same way
_T_95 = 2.776  # of Student's distribution with 4 degrees of freedom
# Minibatches and epochs as Stable-Baselines3 has them where nobody says otherwise.
_SETTINGS = (
    "--pool process --n-workers 2 --n-envs 8 --n-steps 128 --batch-size 64 --n-epochs 10 "
    "--network-arch 128,128"
)


class Trained(NamedTuple):
    """How one run ended."""

    reward: float
    wall_s: float
    reached_s: float | None
    lag: float


def _lag(env: str, steps: str, threshold: float) -> Iterator[Row]:
    """`stoker train ... --collect step` and `--collect overlap`, seed by seed, in turn."""
    jobs = [(seed, mode) for seed in SEEDS for mode in _order(seed)]
    with ThreadPoolExecutor(AT_ONCE) as workers:
        ended = list(workers.map(lambda job: _train(env, steps, threshold, *job), jobs))
    runs: dict[str, list[Trained]] = {"step": [], "overlap": []}
    for (_, mode), run in zip(jobs, ended, strict=True):
        runs[mode].append(run)
    yield _row(env, steps, threshold, runs)


def _order(seed: int) -> tuple[str, str]:
    return ("step", "overlap") if seed % 2 else ("overlap", "step")


def _row(env: str, steps: str, threshold: float, runs: dict[str, list[Trained]]) -> Row:
    interval = {mode: _interval([run.reward for run in of]) for mode, of in runs.items()}
    (low, high), (below, above) = interval["overlap"], interval["step"]
    ours, peer = ((high + low) / 2, (above + below) / 2)
    soon = {mode: _median([run.reached_s for run in of]) for mode, of in runs.items()}
    gain = soon["step"] / soon["overlap"] if soon["step"] and soon["overlap"] else None
    return Row(
        "lag",
        f"{env}, {steps} steps, 5 seeds",
        round(ours, 1),
        "evaluated reward; the ratio is of the time to the threshold, in step over overlapped",
        round(peer, 1),
        "in step",
        None if gain is None else round(gain, 2),
        details={
            "within_each_others_interval": below <= ours <= above and low <= peer <= high,
            "interval": {mode: [round(x, 1) for x in ends] for mode, ends in interval.items()},
            "rewards": {mode: [round(run.reward, 1) for run in of] for mode, of in runs.items()},
            "threshold": threshold,
            "reached_s": {
                mode: [None if run.reached_s is None else round(run.reached_s, 1) for run in of]
                for mode, of in runs.items()
            },
            "wall_s": {mode: [round(run.wall_s, 1) for run in of] for mode, of in runs.items()},
            "lag": {mode: max(run.lag for run in of) for mode, of in runs.items()},
        },
    )


def _interval(rewards: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean, rounded as it is shown."""
    mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
    half = _T_95 * spread / math.sqrt(len(rewards))
    return round(mean - half, 1), round(mean + half, 1)


def _median(times: list[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return statistics.median(known) if len(known) == len(times) else None


def _train(env: str, steps: str, threshold: float, seed: int, mode: str) -> Trained:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "--env", env, "--timesteps", steps, "--seed", str(seed), "--json"]
        words += ["--collect", mode, "--device", device, "--runs-dir", folder, *_SETTINGS.split()]
        ended = subprocess.run(
            [sys.executable, "-m", "stoker", *words], capture_output=True, text=True, check=True
        )
        outcome: dict[str, Any] = json.loads(ended.stdout)
        reached = _when_reached(Path(outcome["run"]), threshold)
    return Trained(
        outcome["eval_reward"], outcome["wall_s"], reached, outcome["metrics"]["lag/max"]
    )


def _when_reached(run: Path, threshold: float) -> float | None:
    for row in read_metrics(run):
        if row.get("rollout/ep_rew_mean", -math.inf) >= threshold:
            return float(row["wall_s"])
    return None


CASES: Cases = {
    # environment, steps, reward that counts as reached while training
    case[0]: partial(_lag, *case)
    for case in (
        ("CartPole-v1", "100k", 400.0),
        ("Acrobot-v1", "100k", -110.0),
        ("Pendulum-v1", "200k", -400.0),
        ("stoker/Mission-v0", "50k", 2.0),
    )
}
