"""From a choice to the pool itself, with a way out where processes cannot start."""

from __future__ import annotations

import warnings
from typing import Any

from stoker.config.schema import FaultSettings
from stoker.errors import WorkerError
from stoker.pools.choose import Choice
from stoker.pools.direct import DirectPool
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.pools.slot import MakeEnvs
from stoker.types import EnvSpec


def open_pool(
    make_envs: MakeEnvs,
    spec: EnvSpec,
    n_envs: int,
    choice: Choice,
    settings: FaultSettings,
    **switches: Any,
) -> tuple[DirectPool, Choice]:
    """The pool that was chosen, or an inline one in its place; and which it is."""
    if choice.pool != "inline":
        try:
            workers, switches_too = choice.n_workers, {"waits": choice.waits, **switches}
            pool = ProcessPool(make_envs, spec, n_envs, workers, settings, **switches_too)
            return pool, choice
        except WorkerError as error:
            warnings.warn(f"Stepping environments inline instead: {error}", stacklevel=3)
            choice = Choice("inline", 0, "worker processes could not start")
    return InlinePool(make_envs, spec, n_envs, settings, **switches), choice
