"""`stoker train` in processes of its own, seed by seed, and what a few seeds say about a mean."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from stoker.runs.reader import read_metrics

SEEDS = range(5)
_T_95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179]
_T_95 += [2.160, 2.145, 2.131, 2.120, 2.110, 2.101]
"""Of Student's distribution, with 1, 2 ... degrees of freedom; 18 are those of two times ten seeds.
With more, the last is taken, which makes intervals wider than they need be."""


class Trained(NamedTuple):
    """How one run ended, and what it wrote on its way."""

    outcome: dict[str, Any]
    """What `stoker train --json` prints."""
    metrics: list[dict[str, Any]]
    """The lines of its metrics.jsonl."""

    @property
    def reward(self) -> float:
        """Evaluated, once it was trained."""
        return float(self.outcome["eval_reward"])

    @property
    def wall_s(self) -> float:
        return float(self.outcome["wall_s"])

    @property
    def curve(self) -> dict[int, float]:
        """The mean reward of the last training episodes, by environment steps."""
        name = "rollout/ep_rew_mean"
        return {row["env_steps"]: row[name] for row in self.metrics if row.get(name) is not None}


class Mean(NamedTuple):
    """A mean over seeds and the ends of its 95 % confidence interval, rounded as shown."""

    mean: float
    low: float
    high: float

    @property
    def ends(self) -> list[float]:
        return [self.low, self.high]

    def agrees(self, other: Mean) -> bool:
        """Whether each mean lies within the other's interval."""
        return other.low <= self.mean <= other.high and self.low <= other.mean <= self.high

    @property
    def leaves_out_zero(self) -> bool:
        return not self.low <= 0 <= self.high


def mean_of(values: Sequence[float]) -> Mean:
    """One value a seed, of two seeds or more."""
    return _around(statistics.mean(values), _t_95(len(values) - 1) * _error(values))


def interval(values: Sequence[float]) -> list[float] | None:
    """The ends of a 95 % confidence interval of the mean; None of fewer than two values."""
    return mean_of(values).ends if len(values) > 1 else None


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Mean:
    """Of two means, one value a seed each, by Welch: the sides need not vary alike."""
    mean = statistics.mean(ours) - statistics.mean(theirs)
    parts = [(_error(side) ** 2, len(side) - 1) for side in (ours, theirs)]
    spread = sum(part for part, _ in parts)
    if not spread:
        return _around(mean, 0.0)
    freedom = spread**2 / sum(part**2 / free for part, free in parts)
    return _around(mean, _t_95(freedom) * math.sqrt(spread))


def _around(mean: float, half: float) -> Mean:
    return Mean(*(round(x, 2) for x in (mean, mean - half, mean + half)))


def _t_95(freedom: float) -> float:
    """With whole degrees of freedom, rounded down: the interval is of 95 % or a little more."""
    return _T_95[min(math.floor(freedom + 1e-9), len(_T_95)) - 1]


def _error(values: Sequence[float]) -> float:
    """The standard error of their mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def train_all(runs: Sequence[Sequence[str]], at_once: int, limit_s: float) -> list[Trained]:
    """Train with each of these lists of flags, a few at once; results in their order."""
    with ThreadPoolExecutor(at_once) as workers:
        return list(workers.map(lambda flags: _train(flags, limit_s), runs))


def _train(flags: Sequence[str], limit_s: float) -> Trained:
    """In a folder that is gone afterwards. A run past its time limit is killed, and an error."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", *flags, "--json", "--runs-dir", folder]
        ended = subprocess.run(
            [sys.executable, "-m", "stoker", *words],
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        if ended.returncode:
            said = ended.stderr.strip().splitlines()[-15:]
            raise RuntimeError("\n".join([f"stoker {' '.join(words)}: {ended.returncode}", *said]))
        outcome: dict[str, Any] = json.loads(ended.stdout)
        return Trained(outcome, read_metrics(Path(outcome["run"])))
