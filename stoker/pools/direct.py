"""Pools that made their environments themselves, so that each can be spoken to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.pools.base import BasePool
from stoker.types import StepBatch


class DirectPool(BasePool):
    """Environments can be restarted one by one, called, looked at and set."""

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
