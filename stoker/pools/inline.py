"""Environments in this process, one after the other: no hand-over, no parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.config.schema import FaultSettings
from stoker.errors import BadValueError
from stoker.pools.direct import DirectPool
from stoker.pools.faults import FaultLog
from stoker.pools.journal import replay_of
from stoker.pools.rows import Rows, as_range
from stoker.pools.slot import MakeEnvs, Slot
from stoker.pools.values import ValueCheck
from stoker.types import EnvSpec, EpisodeJournal, StepBatch


class InlinePool(DirectPool):
    """The simplest pool, and the reference for the others."""

    def __init__(
        self,
        make_env: MakeEnvs,
        spec: EnvSpec,
        n_envs: int,
        settings: FaultSettings | None = None,
        keep_infos: bool = False,
    ) -> None:
        super().__init__(spec, n_envs)
        settings, self._keep_infos = settings or FaultSettings(), keep_infos
        self._rows = Rows(spec, n_envs)
        self._log, self._check = FaultLog(settings), ValueCheck(self._rows, settings.check_bounds)
        self._slots = [Slot(make_env, self._rows, i) for i in range(n_envs)]
        self._sent = np.zeros(n_envs, bool)

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        for slot in self._slots:
            slot.start(seed, *replay_of(journal, slot.index, self.codec))
        self._sent[:] = False
        return self._with_infos(self._check.accept(self._rows.batch(), acted=False))

    def restart(
        self,
        env_ids: np.ndarray,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None = None,
    ) -> StepBatch:
        for env_id, seed in zip(env_ids.tolist(), seeds, strict=True):
            self._slots[env_id].restart(seed, options)
        batch = self._rows.batch(as_range(env_ids))
        return self._with_infos(self._check.accept(batch, acted=False))

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
        return self._with_infos(batch)

    def _with_infos(self, batch: StepBatch) -> StepBatch:
        if self._keep_infos:
            self.last_infos = [self._slots[i].infos for i in batch.env_ids.tolist()]
        return batch

    def ask(self, what: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        return [getattr(self._slots[i], what)(*given) for i, given in arguments.items()]

    def faults(self) -> dict[str, int]:
        return dict(self._log.counts)

    def close(self) -> None:
        while self._slots:
            self._slots.pop().close_quietly()
