"""What Stoker set out to reach, and where the figure that shows it is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Found = Mapping[str, Any]


class Target(NamedTuple):
    """A figure that is to be reached."""

    what: str
    file: str
    """In `bench/results`."""
    case: str
    """How the case's name begins."""
    at_least: float
    unit: str
    peer: str = ""
    """How the name of the row's peer begins."""
    figure: Callable[[Found], float | None] = lambda row: row["ours"]


def _share(row: Found) -> float | None:
    return round(row["ours"] / row["ceiling"], 3) if row["ours"] and row["ceiling"] else None


def _overlapped_share(row: Found) -> float | None:
    """Each training's against a ceiling of its own, as the machine wanders."""
    return round(statistics.median(row["details"]["share_of_ceiling"]["overlap"]), 3)


def _ratio(row: Found) -> float | None:
    ratio: float | None = row["ratio"]
    return ratio


STEPS = "steps/s"
TARGETS = (
    Target("CartPole as tensors, 2048 x 32, 64-64", "tensor-gpu", "small", 45e6, STEPS),
    Target("the same, 16384 x 32", "tensor-gpu", "large", 110e6, STEPS),
    Target(
        "the same, 4096 x 32, 1024-512-256, TF32",
        "tensor-gpu",
        "wide: 4096 x 32, 1024-512-256, tf32",
        5e6,
        STEPS,
    ),
    Target("the same, bf16", "tensor-gpu", "wide: 4096 x 32, 1024-512-256, bf16", 9e6, STEPS),
    Target("256 agents at once, 4 x 128 each", "population-gpu", "256 agents", 32e6, STEPS),
    Target(
        "training missions in NumPy, of what the environments alone give",
        "overlap-gpu",
        "training stoker/Mission-v0",
        0.9,
        "of the ceiling",
        figure=_overlapped_share,
    ),
    Target("training CartPole-v1 of Gymnasium", "overlap-gpu", "training CartPole-v1", 7e5, STEPS),
    Target(
        "stepping CartPole-v1 in processes, 16 environments, 2 cores",
        "pools-cpu",
        "CartPole-v1, 16 envs",
        15,
        "times SubprocVecEnv",
        "stable-baselines3",
        _ratio,
    ),
    Target(
        "the same, 64 environments",
        "pools-cpu",
        "CartPole-v1, 64 envs",
        15,
        "times SubprocVecEnv",
        "stable-baselines3",
        _ratio,
    ),
    Target(
        "the same, 128 environments",
        "pools-cpu",
        "CartPole-v1, 128 envs",
        15,
        "times SubprocVecEnv",
        "stable-baselines3",
        _ratio,
    ),
    Target(
        "waiting 50 ms a step, of in flight / latency, 2 cores",
        "io-cpu",
        "50 ms a step, 1024 in flight",
        0.9,
        "of the ceiling",
        figure=_share,
    ),
    Target(
        "training over HTTP, 50 ms a request, 2048 in flight",
        "crawl-gpu",
        "training with 2048 in flight, 50 ms, sites: 1",
        20e3,
        STEPS,
    ),
    Target(
        "one that stops for 5 s beside 999 others",
        "io-cpu",
        "999 in flight",
        0.98,
        "of their speed without it",
        figure=_ratio,
    ),
)
