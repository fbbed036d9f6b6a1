"""How far a run is: what it counts, and what it tells whoever follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stoker.train.overlap import Decision


class Progress(NamedTuple):
    """What a screen or a callback is told after an iteration."""

    iteration: int
    n_iterations: int
    env_steps: int
    timesteps: int
    wall_s: float
    sps: float
    shares: dict[str, float]
    metrics: dict[str, float]
    decision: Decision | None = None
    """Something Stoker chose since the last time."""


@dataclass
class Counters:
    """What a checkpoint counts."""

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    late_steps: int = 0
    skipped_updates: int = 0
    bad_in_a_row: int = 0
    rollbacks: int = 0
    saved_at: int = 0
    evaluated_at: int = 0
    best_reward: float | None = None
    best_step: int | None = None
