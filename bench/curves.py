"""Does training on tensor environments learn the same? Two sides, the same settings, five seeds.

`device`: Stoker's kernels on the GPU and torch's on the CPU. `mission`: missions as tensors and in
NumPy. The evaluated reward and the training curve, each with its 95 % confidence interval; steps
are so few that not every seed has learned all there is, where two sides are easier to tell apart.
Without a GPU both sides run on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from bench.record import Cases, Row
from bench.seeds import SEEDS, Trained, difference, mean_of, train_all

_CORES = len(os.sched_getaffinity(0))
_AT_ONCE = min(len(SEEDS), _CORES)
_TIME_LIMIT_S = 1200.0
_POINTS = 10
_SETTINGS = (
    "--n-envs 32 --n-steps 64 --batch-size 256 --n-epochs 10 --network-arch 64,64 --lr 1e-3 "
    "--eval-episodes 100 --log-every 1"
)
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_OWN_KERNELS = f"--device {_DEVICE} --kernels fused --compile-in foreground"
_IN_NUMPY = f"--pool process --n-workers {max(1, _CORES // _AT_ONCE)} --collect step"


class Side(NamedTuple):
    """An environment, and how it is trained on."""

    name: str
    env: str
    flags: str

    def train(self, steps: str) -> list[Trained]:
        """Once a seed."""
        words = ["--env", self.env, "--timesteps", steps, *_SETTINGS.split(), *self.flags.split()]
        runs = [[*words, "--seed", str(seed)] for seed in SEEDS]
        return train_all(runs, _AT_ONCE, _TIME_LIMIT_S)


def _device() -> Iterator[Row]:
    for env, steps in (("tensor/CartPole-v1", "40k"), ("tensor/Pendulum-v1", "60k")):
        ours = Side(f"Stoker's kernels, {_DEVICE}", env, _OWN_KERNELS)
        theirs = Side("torch's kernels, cpu", env, "--device cpu --kernels torch")
        yield _row(f"device: {env}", steps, ours, theirs)


def _mission() -> Iterator[Row]:
    ours = Side(f"tensors, {_DEVICE}", "tensor/Mission-v0", _OWN_KERNELS)
    theirs = Side(
        f"NumPy, learner on {_DEVICE}", "stoker/Mission-v0", f"{_IN_NUMPY} --device {_DEVICE}"
    )
    yield _row("mission", "80k", ours, theirs)


def _row(case: str, steps: str, *sides: Side) -> Row:
    """Ours is the first of two sides."""
    ours, theirs = (side.train(steps) for side in sides)
    both = {side.name: runs for side, runs in zip(sides, (ours, theirs), strict=True)}
    rewards = {name: [run.reward for run in runs] for name, runs in both.items()}
    mine, other = (mean_of(values) for values in rewards.values())
    return Row(
        "curves",
        f"{case}, {steps} steps, {len(SEEDS)} seeds",
        mine.mean,
        "evaluated reward, the mean over seeds",
        other.mean,
        sides[1].name,
        round(mine.mean / other.mean, 3) if min(mine.mean, other.mean) > 0 else None,
        details={
            "within_each_others_interval": mine.agrees(other),
            "interval": {sides[0].name: mine.ends, sides[1].name: other.ends},
            "no_interval_since_all_seeds_are_alike": [
                name for name, values in rewards.items() if len(set(values)) == 1
            ],
            "difference_and_interval": difference(*rewards.values()),
            "rewards": {name: [round(x, 2) for x in values] for name, values in rewards.items()},
            "curve": _curve(both),
            "wall_s": {name: [round(run.wall_s, 1) for run in runs] for name, runs in both.items()},
            "at_once": _AT_ONCE,
            "settings": _SETTINGS,
            "flags": {side.name: side.flags for side in sides},
        },
    )


def _curve(both: dict[str, list[Trained]]) -> dict[str, Any]:
    """Training episodes' reward at steps that every run has logged: a mean and its interval, and
    at which of them the interval of the two sides' difference leaves 0 out."""
    logged = [run.curve for runs in both.values() for run in runs]
    steps = _spread(sorted(set(logged[0]).intersection(*logged[1:])))
    at = {
        name: [[run.curve[step] for run in runs] for step in steps] for name, runs in both.items()
    }
    gaps = [difference(*values) for values in zip(*at.values(), strict=True)]
    return {
        "steps": steps,
        **{name: [mean_of(values) for values in points] for name, points in at.items()},
        "apart_at": [
            step for step, gap in zip(steps, gaps, strict=True) if not gap.low <= 0 <= gap.high
        ],
    }


def _spread(steps: Sequence[int]) -> list[int]:
    """Some of them, evenly, and the last."""
    count = min(_POINTS, len(steps))
    return [steps[len(steps) * (point + 1) // count - 1] for point in range(count)]


CASES: Cases = {"device": _device, "mission": _mission}
