"""From a choice to the pool itself, with a way out where processes cannot start."""

from __future__ import annotations

import warnings
from typing import Any

from stoker.config.schema import FaultSettings
from stoker.errors import WorkerError
from stoker.pools.base import BasePool
from stoker.pools.choose import Choice
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.types import EnvSpec


def open_pool(
    make_env: Any,
    spec: EnvSpec,
    n_envs: int,
    choice: Choice,
    settings: FaultSettings,
    **switches: Any,
) -> tuple[BasePool, Choice]:
    """The pool that was chosen, or an inline one in its place; and which it is."""
    if choice.pool == "process":
        try:
            workers = choice.n_workers
            return ProcessPool(make_env, spec, n_envs, workers, settings, **switches), choice
        except WorkerError as error:
            warnings.warn(f"Stepping environments inline instead: {error}", stacklevel=3)
            choice = Choice("inline", 0, "worker processes could not start")
    return InlinePool(make_env, spec, n_envs, settings, **switches), choice
