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
_T_95_BY_COUNT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Of Student's distribution, with one degree of freedom less than there are values."""
_T_95 = _T_95_BY_COUNT[len(SEEDS)]


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
    """A mean over `SEEDS` and the ends of its 95 % confidence interval, rounded as shown."""

    mean: float
    low: float
    high: float

    @property
    def ends(self) -> list[float]:
        return [self.low, self.high]

    def agrees(self, other: Mean) -> bool:
        """Whether each mean lies within the other's interval."""
        return other.low <= self.mean <= other.high and self.low <= other.mean <= self.high


def mean_of(values: Sequence[float]) -> Mean:
    """One value a seed."""
    mean, half = statistics.mean(values), _T_95 * _error(values)
    return Mean(*(round(x, 2) for x in (mean, mean - half, mean + half)))


def interval(values: Sequence[float]) -> list[float] | None:
    """The ends of a 95 % confidence interval of the mean of 2 to 5 values; None of fewer."""
    if len(values) < 2:
        return None
    mean = statistics.mean(values)
    half = _T_95_BY_COUNT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return [round(mean - half, 2), round(mean + half, 2)]


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Mean:
    """Of two means, one value a seed each. The interval is of 95 % or more: as many degrees of
    freedom as one side has are the fewest that Welch's rule can give."""
    mean = statistics.mean(ours) - statistics.mean(theirs)
    half = _T_95 * math.hypot(_error(ours), _error(theirs))
    return Mean(*(round(x, 2) for x in (mean, mean - half, mean + half)))


def _error(values: Sequence[float]) -> float:
    """The standard error of their mean."""
    assert len(values) == len(SEEDS), "for which _T_95 holds"
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
