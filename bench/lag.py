"""Does a policy that is one iteration late learn as well, and how much sooner is it there?

The same steps, settings and seeds, in step and overlapped, or interleaved where DQN learns: the
evaluated reward with its 95 % confidence interval, and the wall-clock time until training episodes
reach a threshold.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from bench.record import Cases, Row
from bench.seeds import SEEDS, Trained, difference, mean_of, train_all

AT_ONCE = min(5, len(os.sched_getaffinity(0)))  # both modes share the machine in the same way
_TIME_LIMIT_S = 1800.0
# Minibatches and epochs as Stable-Baselines3 has them where nobody says otherwise.
_SETTINGS = (
    "--pool process --n-workers 2 --n-envs 8 --n-steps 128 --batch-size 64 --n-epochs 10 "
    "--network-arch 128,128"
)


class Case(NamedTuple):
    """What is trained, and what is held against in step."""

    env: str
    steps: str
    threshold: float
    """Reward that counts as reached while training."""
    name: str = ""
    mode: str = "overlap"
    settings: str = _SETTINGS
    seeds: Sequence[int] = SEEDS


def _lag(case: Case) -> Iterator[Row]:
    """`stoker train ... --collect step` and the other way, seed by seed, in turn."""
    jobs = [(seed, mode) for seed in case.seeds for mode in _order(case, seed)]
    flags = [_flags(case, *job) for job in jobs]
    runs: dict[str, list[Trained]] = {"step": [], case.mode: []}
    for (_, mode), run in zip(jobs, train_all(flags, AT_ONCE, _TIME_LIMIT_S), strict=True):
        runs[mode].append(run)
    yield _row(case, runs)


def _order(case: Case, seed: int) -> tuple[str, str]:
    return ("step", case.mode) if seed % 2 else (case.mode, "step")


def _flags(case: Case, seed: int, mode: str) -> list[str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words = ["--env", case.env, "--timesteps", case.steps, "--seed", str(seed)]
    return [*words, "--collect", mode, "--device", device, *case.settings.split()]


def _row(case: Case, runs: dict[str, list[Trained]]) -> Row:
    reward = {mode: mean_of([run.reward for run in of]) for mode, of in runs.items()}
    rewards = {mode: [round(run.reward, 1) for run in of] for mode, of in runs.items()}
    reached = {
        mode: [_when_reached(run, case.threshold) for run in of] for mode, of in runs.items()
    }
    soon = {mode: _median(times) for mode, times in reached.items()}
    in_step, other = soon["step"], soon[case.mode]
    gain = in_step / other if in_step and other else None
    return Row(
        "lag",
        f"{case.name or case.env}, {case.steps} steps, {len(case.seeds)} seeds",
        reward[case.mode].mean,
        f"evaluated reward; the ratio is of the time to the threshold, in step over {case.mode}",
        reward["step"].mean,
        "in step",
        None if gain is None else round(gain, 2),
        details={
            "within_each_others_interval": reward[case.mode].agrees(reward["step"]),
            "interval": {mode: of.ends for mode, of in reward.items()},
            "difference_and_interval": difference(rewards[case.mode], rewards["step"]),
            "rewards": rewards,
            "threshold": case.threshold,
            "reached_s": {
                mode: [None if time is None else round(time, 1) for time in times]
                for mode, times in reached.items()
            },
            "wall_s": {mode: [round(run.wall_s, 1) for run in of] for mode, of in runs.items()},
            "lag": {
                mode: max(run.outcome["metrics"].get("lag/max", 0.0) for run in of)
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


_DQN = (
    "--algo dqn --pool process --n-workers 2 --network-arch 64,64 --no-double "
    "--lr-schedule constant"
)
CASES: Cases = {
    case.name or case.env: partial(_lag, case)
    for case in (
        Case("CartPole-v1", "100k", 400.0),
        Case("Acrobot-v1", "100k", -110.0),
        Case("Pendulum-v1", "200k", -400.0),
        Case("stoker/Mission-v0", "50k", 2.0),
        # Best actions may go in circles, so one seed ends at -80 and the next at -500.
        Case("Acrobot-v1", "50k", -120.0, "DQN Acrobot-v1", "interleave", _DQN, seeds=range(50)),
    )
}
