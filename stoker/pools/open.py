"""From a choice to the pool itself, with a way out where processes cannot start."""

from __future__ import annotations

import warnings
from typing import Any

from stoker.config.schema import FaultSettings
from stoker.errors import WorkerError
from stoker.pools.choose import Choice
from stoker.pools.direct import DirectPool
from stoker.pools.inline import InlinePool
from stoker.pools.on_ray import RayPool
from stoker.pools.process import ProcessPool
from stoker.pools.slot import MakeEnvs
from stoker.types import EnvSpec


def open_pool(
    make_envs: MakeEnvs,
    spec: EnvSpec,
    n_envs: int,
    choice: Choice,
    settings: FaultSettings,
    learner_cores: int = 1,
    **switches: Any,
) -> tuple[DirectPool, Choice]:
    """The pool that was chosen, or an inline one in its place; and which it is.

    Whoever asks for a Ray cluster is told why there is none, and gets nothing else.
    """
    if choice.pool == "ray":
        asked = choice.n_workers
        on_ray = RayPool(
            make_envs, spec, n_envs, asked, settings, learner_cores=learner_cores, **switches
        )
        found = choice._replace(n_workers=on_ray.n_workers, n_machines=on_ray.n_machines)
        return on_ray, found
    if choice.pool != "inline":
        try:
            workers, switches_too = choice.n_workers, {"waits": choice.waits, **switches}
            pool = ProcessPool(make_envs, spec, n_envs, workers, settings, **switches_too)
            return pool, choice
        except WorkerError as error:
            warnings.warn(f"Stepping environments inline instead: {error}", stacklevel=3)
            choice = Choice("inline", 0, "worker processes could not start")
    return InlinePool(make_envs, spec, n_envs, settings, **switches), choice
