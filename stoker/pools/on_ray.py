"""Environments on the machines of a Ray cluster, many to a worker, which is an actor there.

A worker gets one message for all of a group's actions, and sends one back with their rows: blocks
of bytes, which the trainer copies into its own rows. What the environments do is what they do in
every pool.
"""

from __future__ import annotations

import contextlib

import numpy as np

from stoker.config.schema import FaultSettings
from stoker.pools.cluster import connected, import_ray
from stoker.pools.crewed import CrewedPool, pickled
from stoker.pools.ray_crew import RayCrew
from stoker.pools.ray_places import Places
from stoker.pools.ray_worker import RayTask
from stoker.pools.rows import Rows
from stoker.pools.slot import MakeEnvs
from stoker.types import EnvSpec


class RayPool(CrewedPool):
    """N environments over `n_workers` actors, in two groups where each worker can have both.

    0 workers is one for every core of the cluster, but for those that the learner needs, if it is
    on a machine of the cluster.
    """

    _crew: RayCrew

    def __init__(
        self,
        make_env: MakeEnvs,
        spec: EnvSpec,
        n_envs: int,
        n_workers: int = 0,
        settings: FaultSettings | None = None,
        keep_infos: bool = False,
        learner_cores: int = 1,
    ) -> None:
        ray, settings = import_ray("pool"), settings or FaultSettings()
        memory, states = np.zeros(Rows.size(spec, n_envs), np.uint8), np.zeros(n_envs, np.uint8)
        rows = Rows(spec, n_envs, memory)
        super().__init__(rows, states, settings, keep_infos)
        self.memory = memory
        task = RayTask(
            [],
            spec,
            n_envs,
            pickled(make_env),
            None,
            settings.bad_values == "truncate",
            keep_infos,
            settings.reset_deadline,
            settings.step_deadline,
        )
        self._connection = contextlib.ExitStack()
        self._connection.enter_context(connected(ray))
        with contextlib.ExitStack() as undone:
            undone.callback(self._connection.close)
            places = Places(ray)
            self.n_workers = min(n_workers or places.cores(learner_cores), n_envs)
            self._crew = RayCrew(
                ray,
                task,
                rows,
                states,
                self._share_out(self.n_workers, alternate=True),
                settings,
                self._log,
                self._stand_of,
                places,
            )
            self._start("Workers", "Look at the Ray cluster with `ray status`.")
            undone.pop_all()

    @property
    def n_machines(self) -> int:
        """How many machines of the cluster have workers."""
        return self._crew.n_machines

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._connection.close()
