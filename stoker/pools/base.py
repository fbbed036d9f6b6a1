"""The pool contract: what is the same wherever environments run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker.pools.rows import Rows
from stoker.pools.spaces import ActionCodec
from stoker.types import EnvSpec, EpisodeJournal, HostObs, StepBatch


class Infos(NamedTuple):
    """What an environment said beside its row: now, and of the episode that the step ended."""

    info: Mapping[str, Any]
    final: Mapping[str, Any] | None


class BasePool(ABC):
    """A pool: `send` actions, `recv` whoever is ready, or `step` everyone. See `types.Pool`."""

    _rows: Rows

    def __init__(self, spec: EnvSpec, n_envs: int) -> None:
        self.spec, self.n_envs = spec, n_envs
        self.codec = ActionCodec(spec.action)
        self._everyone = np.arange(n_envs)
        self.groups: tuple[slice, ...] = (slice(0, n_envs),)
        self.handful = n_envs
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

    def __enter__(self) -> BasePool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DirectPool(BasePool):
    """A pool that made its environments itself, so that each can be spoken to."""

    @abstractmethod
    def restart(
        self,
        env_ids: np.ndarray,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None = None,
    ) -> StepBatch:
        """Reset some with seeds of the caller's; their later episodes begin without one."""

    @abstractmethod
    def ask(self, what: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """What `Slot.<what>` returns for some environments, with the arguments of each."""

    def call(
        self, name: str, *arguments: Any, env_ids: Sequence[int] | None = None, **keywords: Any
    ) -> list[Any]:
        """What a method of each environment returns, or an attribute of each is."""
        chosen = range(self.n_envs) if env_ids is None else env_ids
        return self.ask("call", dict.fromkeys(chosen, (name, arguments, keywords)))

    def get_attr(self, name: str, env_ids: Sequence[int]) -> list[Any]:
        """An attribute of each environment, be it a method."""
        return self.ask("get_attr", dict.fromkeys(env_ids, (name,)))

    def set_attr(
        self, name: str, values: Sequence[Any], env_ids: Sequence[int] | None = None
    ) -> None:
        """Set an attribute of each environment, to a value each."""
        chosen = range(self.n_envs) if env_ids is None else env_ids
        self.ask("set_attr", {i: (name, v) for i, v in zip(chosen, values, strict=True)})

    def classes(self, env_ids: Sequence[int]) -> list[set[str]]:
        """Names of all classes that each environment and its wrappers are instances of."""
        return self.ask("classes", dict.fromkeys(env_ids, ()))


def replay_of(
    journal: EpisodeJournal | None, env_id: int, codec: ActionCodec
) -> tuple[int, np.ndarray | None]:
    """Which episode an environment is in, and its environment actions so far (None: unknown)."""
    if journal is None:
        return 0, np.empty((0, *codec.spec.shape), codec.spec.dtype)
    episode, length = int(journal.episode[env_id]), int(journal.length[env_id])
    if length < 0:  # too long to have been kept: the next episode begins
        return episode + 1, None
    return episode, codec.encode(journal.actions[:length, env_id])
