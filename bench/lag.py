"""Does a policy that is one iteration late learn as well, and how much sooner is it there?

The same steps and settings, in step and overlapped, five seeds each: the evaluated reward with its
95 % confidence interval, and the wall-clock time until training episodes reach a threshold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from functools import partial

import torch

from bench.record import Cases, Row
from bench.seeds import SEEDS, Trained, mean_of, train_all

AT_ONCE = 5  # both modes share the machine in the same way
_TIME_LIMIT_S = 1800.0
# Minibatches and epochs as Stable-Baselines3 has them where nobody says otherwise.
_SETTINGS = (
    "--pool process --n-workers 2 --n-envs 8 --n-steps 128 --batch-size 64 --n-epochs 10 "
    "--network-arch 128,128"
)


def _lag(env: str, steps: str, threshold: float) -> Iterator[Row]:
    """`stoker train ... --collect step` and `--collect overlap`, seed by seed, in turn."""
    jobs = [(seed, mode) for seed in SEEDS for mode in _order(seed)]
    flags = [_flags(env, steps, *job) for job in jobs]
    runs: dict[str, list[Trained]] = {"step": [], "overlap": []}
    for (_, mode), run in zip(jobs, train_all(flags, AT_ONCE, _TIME_LIMIT_S), strict=True):
        runs[mode].append(run)
    yield _row(env, steps, threshold, runs)


def _order(seed: int) -> tuple[str, str]:
    return ("step", "overlap") if seed % 2 else ("overlap", "step")


def _flags(env: str, steps: str, seed: int, mode: str) -> list[str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words = ["--env", env, "--timesteps", steps, "--seed", str(seed)]
    return [*words, "--collect", mode, "--device", device, *_SETTINGS.split()]


def _row(env: str, steps: str, threshold: float, runs: dict[str, list[Trained]]) -> Row:
    reward = {mode: mean_of([run.reward for run in of]) for mode, of in runs.items()}
    reached = {mode: [_when_reached(run, threshold) for run in of] for mode, of in runs.items()}
    soon = {mode: _median(times) for mode, times in reached.items()}
    gain = soon["step"] / soon["overlap"] if soon["step"] and soon["overlap"] else None
    return Row(
        "lag",
        f"{env}, {steps} steps, {len(SEEDS)} seeds",
        reward["overlap"].mean,
        "evaluated reward; the ratio is of the time to the threshold, in step over overlapped",
        reward["step"].mean,
        "in step",
        None if gain is None else round(gain, 2),
        details={
            "within_each_others_interval": reward["overlap"].agrees(reward["step"]),
            "interval": {mode: of.ends for mode, of in reward.items()},
            "rewards": {mode: [round(run.reward, 1) for run in of] for mode, of in runs.items()},
            "threshold": threshold,
            "reached_s": {
                mode: [None if time is None else round(time, 1) for time in times]
                for mode, times in reached.items()
            },
            "wall_s": {mode: [round(run.wall_s, 1) for run in of] for mode, of in runs.items()},
            "lag": {
                mode: max(run.outcome["metrics"]["lag/max"] for run in of)
                for mode, of in runs.items()
            },
        },
    )


def _median(times: list[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return statistics.median(known) if len(known) == len(times) else None


def _when_reached(run: Trained, threshold: float) -> float | None:
    for row in run.metrics:
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
