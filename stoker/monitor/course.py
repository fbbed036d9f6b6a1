"""How a run will go: what its steps cost, from the first to the last, and what else takes time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from stoker.monitor.verdict import Costs


class Stretch(NamedTuple):
    """A part of a run in which steps cost the same."""

    costs: Costs
    steps: float = math.inf  # that it lasts at most
    worth_s: float = 0.0
    """It is begun only where what is left would take longer than that at the pace before it."""


class Course(NamedTuple):
    """A run, as far as it can be known before it is made."""

    batch: int  # steps of a rollout, of which a run makes whole ones
    begins_s: float  # what the first iterations take beyond those that follow
    stretches: Sequence[Stretch]
    save_s: float  # what a checkpoint takes

    def steps(self, timesteps: int) -> int:
        """Steps of a run that is to make so many."""
        return self.batch * math.ceil(timesteps / self.batch)

    def wall_s(self, timesteps: int, checkpoint_every: int = 0) -> float:
        """Seconds of a run, without building it before and evaluating it after."""
        left = float(self.steps(timesteps))
        every = checkpoint_every or max(1, timesteps // 10)
        saved = math.ceil(left / max(every, self.batch))
        wall, pace = self.begins_s + saved * self.save_s, self.stretches[0].costs.total
        for stretch, until in zip(self.stretches, self._until(), strict=True):
            if left * pace < stretch.worth_s:
                break
            pace = stretch.costs.total
            made = min(left, until)
            wall, left = wall + made * pace, left - made
        return wall + left * pace

    def _until(self) -> list[float]:
        """Steps of each stretch; the last goes on to the end."""
        return [stretch.steps for stretch in self.stretches[:-1]] + [math.inf]

    def sps(self, timesteps: int, checkpoint_every: int = 0) -> float:
        """Steps a second of such a run."""
        return self.steps(timesteps) / self.wall_s(timesteps, checkpoint_every)
