"""The pool contract: what is the same wherever environments run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from stoker.pools.rows import Infos, Rows
from stoker.pools.spaces import ActionCodec
from stoker.types import EnvSpec, EpisodeJournal, HostObs, StepBatch


class BasePool(ABC):
    """A pool: `send` actions, `recv` whoever is ready, or `step` everyone. See `types.Pool`."""

    _rows: Rows
    elsewhere = False  # whether environments step in other processes

    def __init__(self, spec: EnvSpec, n_envs: int) -> None:
        self.spec, self.n_envs = spec, n_envs
        self.codec = ActionCodec(spec.action)
        self._everyone = np.arange(n_envs)
        self.groups: tuple[slice, ...] = (slice(0, n_envs),)
        self.handful = n_envs
        self.patience = 0.25
        self.memory: Any = None
        self.last_infos: list[Infos] = []
        """Of the last batch, by row, where the pool was made to keep them."""

    @abstractmethod
    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment, or bring each back to where `journal` says it stood."""

    @abstractmethod
    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Hand policy actions [n, A] to the environments `env_ids` [n]; they begin to step."""

    @abstractmethod
    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        """Wait until `at_least` environments that were sent to are done; all that are done."""

    @abstractmethod
    def close(self) -> None:
        """Close every environment; safe to call twice."""

    def step(self, actions: np.ndarray) -> StepBatch:
        """Step everyone with policy actions [N, A]."""
        self.send(actions, self._everyone)
        return self.recv(self.n_envs)

    @property
    def seen(self) -> tuple[HostObs, np.ndarray | None]:
        """See `types.Pool`."""
        return self._rows.obs, self._rows.action_mask

    def faults(self) -> dict[str, int]:
        """How often each kind of fault was mended so far; a pool that mends nothing has none."""
        return {}

    def worked(self) -> float | None:
        """Seconds that workers have spent on steps, all together; None where that is unknown."""
        return None

    def __enter__(self) -> BasePool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
