"""A training that rests again and again while its environments work alone: the share it reaches.

A machine that others share changes its mood within seconds, so both sides are measured within
seconds of each other; what else runs there at that time still tells on both, and not alike. And
they do the same work, as what a step costs may depend on what an agent does: alone, environments
make those episodes again that ended last in the training.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.load import Alone, Episode
from stoker.collect.in_step import InStepCollector
from stoker.config import resolve
from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory
from stoker.pools.journal import JournalKeeper
from stoker.pools.slot import episode_seed
from stoker.pools.spaces import ActionCodec
from stoker.train import loop
from stoker.train.build import build
from stoker.train.overlap import COLLECTING
from stoker.train.parts import Parts
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.types import StepBatch

WARM_UP = 3  # iterations
_REFILL, _MEASURED, _TURNS = 2, 3, 6  # iterations after a rest, iterations of a turn, turns
_ALONE_S = 1.5
_STILL_S = 0.1
_REMEMBERED = 4  # episodes a core


class Speed(NamedTuple):
    """How a training went once it was warm, by the iteration."""

    wall_s: float
    collect_s: float
    learn_s: float
    steps: float
    ceiling: float | None = None
    """Steps/s of the environments alone, right after."""

    @property
    def efficiency(self) -> float:
        """max(collect, learn) / wall: 1 is perfect."""
        return max(self.collect_s, self.learn_s) / self.wall_s


class Remembering(JournalKeeper):
    """Keeps whole episodes that ended last, too, and counts the steps that came."""

    def __init__(self, parts: Parts, most: int) -> None:
        action = parts.pool.spec.action
        super().__init__(parts.pool.n_envs, action.width, action.stored_dtype)
        self._codec, self._seed = ActionCodec(action), parts.config.run.seed
        self.ended: deque[Episode] = deque(maxlen=most)
        self.steps = 0

    def take(self, actions: np.ndarray, batch: StepBatch) -> None:
        self.steps += int(np.count_nonzero(batch.valid))
        over = batch.terminated | batch.truncated
        for row in np.flatnonzero(over & batch.valid):
            env_id = int(batch.env_ids[row])
            if self._length[env_id] >= self._limit:  # its first actions are all that is known
                continue
            before = self._actions[: self._length[env_id], env_id]
            made = self._codec.encode(np.concatenate([before, actions[row : row + 1]]))
            seed = episode_seed(self._seed, env_id, int(self._episode[env_id]))
            self.ended.append(Episode(seed, made))
        super().take(actions, batch)


def configured(env: EnvFactory, iterations: int, preset: str | None, **settings: Any) -> Config:
    """The config of a training with so many iterations after those that warm up, and before the
    last, which is learned from while nothing is collected any more."""
    given = {"env": env.name, "eval_episodes": 0, **settings}
    has_gpu = torch.cuda.is_available()
    config = resolve({**given, "timesteps": 1}, preset=preset, on_gpu=has_gpu)
    total = (WARM_UP + iterations + 1) * config.total_batch
    return resolve({**given, "timesteps": total}, preset=preset, on_gpu=has_gpu)


def spent(parts: Parts) -> np.ndarray:
    """Seconds so far: on the clock, collecting, learning."""
    collected = sum(parts.collect_clock.total[phase] for phase in COLLECTING)
    return np.array([time.perf_counter(), collected, parts.clock.total["update"]])


def follow(parts: Parts, watch: Callable[[Progress], None]) -> None:
    """Train to the end, telling `watch` of every iteration; the parts are closed then."""
    try:
        loop.run(Session(parts, None), watch, StopRequest(None))
    finally:
        parts.close()


def train_beside(
    env: EnvFactory, alone: Alone, preset: str | None = None, **settings: Any
) -> list[Speed]:
    """Train in turns of some iterations, with what the environments make alone after each."""
    turn = _REFILL + _MEASURED
    config = configured(env, _TURNS * turn, preset, **settings)
    parts = build(config, env)
    speeds, began = list[Speed](), np.zeros(4)
    assert isinstance(parts.collector, InStepCollector)  # which the overlapped one is, too
    journal = Remembering(parts, _REMEMBERED * alone.cores)
    parts.collector.gatherer._journal = journal

    def so_far() -> np.ndarray:
        return np.array([*spent(parts), journal.steps])

    def watch(progress: Progress) -> None:
        done = progress.iteration - WARM_UP
        if done > 0 and done % turn == 0:
            wall, collected, learned, steps = (so_far() - began) / _MEASURED
            _wait_until_still(parts)
            if not journal.ended:
                raise ValueError(f"no episode of {env.name} has ended in {journal.steps} steps")
            ceiling = alone(_ALONE_S, list(journal.ended))
            speeds.append(Speed(wall, collected, learned, steps, ceiling))
        if done % turn == _REFILL:
            began[:] = so_far()

    follow(parts, watch)
    return speeds


def _wait_until_still(parts: Parts) -> None:
    """Until the rollout that was begun is full."""
    worked = None
    while worked != (worked := parts.pool.worked()):
        time.sleep(_STILL_S)
