"""Environments in this process, one after the other: no hand-over, no parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from stoker.pools.base import BasePool, check_values, replay_of
from stoker.pools.rows import Rows
from stoker.pools.slot import Slot
from stoker.types import EnvSpec, EpisodeJournal, StepBatch


class InlinePool(BasePool):
    """The simplest pool, and the reference for the others."""

    def __init__(
        self, make_env: Callable[[], gymnasium.Env[Any, Any]], spec: EnvSpec, n_envs: int
    ) -> None:
        super().__init__(spec, n_envs)
        self._rows = Rows(spec, n_envs)
        self._slots = [Slot(make_env(), self._rows, i) for i in range(n_envs)]
        self._sent = np.zeros(n_envs, bool)

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        for slot in self._slots:
            slot.start(seed, *replay_of(journal, slot.index, self.codec))
        return check_values(self._rows.batch(), self.spec)

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        self._rows.action[env_ids] = self.codec.encode(actions)
        for env_id in env_ids.tolist():
            self._slots[env_id].step()
        self._sent[env_ids] = True

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        ready = None if self._sent.all() else np.flatnonzero(self._sent)
        self._sent[:] = False
        return check_values(self._rows.batch(ready), self.spec)

    def close(self) -> None:
        while self._slots:
            self._slots.pop().close()
