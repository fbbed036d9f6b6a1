"""Environments in this process, one after the other: no hand-over, no parallelism."""

from __future__ import annotations

import numpy as np

from stoker.config.schema import FaultSettings
from stoker.errors import BadValueError
from stoker.pools.base import BasePool, replay_of
from stoker.pools.faults import FaultLog
from stoker.pools.rows import Rows, as_range
from stoker.pools.slot import MakeEnv, Slot
from stoker.pools.values import ValueCheck
from stoker.types import EnvSpec, EpisodeJournal, StepBatch


class InlinePool(BasePool):
    """The simplest pool, and the reference for the others."""

    def __init__(
        self,
        make_env: MakeEnv,
        spec: EnvSpec,
        n_envs: int,
        settings: FaultSettings | None = None,
    ) -> None:
        super().__init__(spec, n_envs)
        settings = settings or FaultSettings()
        self._log, self._check = FaultLog(settings), ValueCheck(spec, settings.check_bounds)
        self._rows = Rows(spec, n_envs)
        self._slots = [Slot(make_env, self._rows, i) for i in range(n_envs)]
        self._sent = np.zeros(n_envs, bool)

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        for slot in self._slots:
            slot.start(seed, *replay_of(journal, slot.index, self.codec))
        self._sent[:] = False
        return self._check.accept(self._rows.batch())

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        self._rows.action[env_ids] = self.codec.encode(actions)
        for env_id in env_ids.tolist():
            self._slots[env_id].answer(self._log.note_env)
        self._sent[env_ids] = True

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        ready = as_range(np.flatnonzero(self._sent))
        self._sent[:] = False
        batch = self._rows.batch(ready)
        while refused := self._check.faults(batch):
            for row, sentence in refused.items():
                self._log.note_env(BadValueError(sentence))
                slot = self._slots[int(batch.env_ids[row])]
                slot.reject()
                slot.answer(self._log.note_env)
            batch = self._rows.batch(ready)
        return batch

    def faults(self) -> dict[str, int]:
        return dict(self._log.counts)

    def close(self) -> None:
        while self._slots:
            self._slots.pop().close()
