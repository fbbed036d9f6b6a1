"""EnvPool's environments, made with `envpool.make(..., env_type="gymnasium")`, as a pool.

The library itself is the user's to import and install (`pip install 'stoker[envpool]'`): here its
object is only used. It steps in C++ threads and answers in batches of its `batch_size`, whoever is
ready. An episode's first observation comes one step after its last, as the answer to an action
that is ignored: that row is no transition, so it is not valid. Seeds are set by `envpool.make`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import VectorEnv

from stoker.errors import ConfigError
from stoker.pools.base import BasePool
from stoker.pools.rows import EVERYONE, Rows, as_range
from stoker.pools.spaces import describe
from stoker.pools.values import ValueCheck
from stoker.types import EpisodeJournal, HostObs, StepBatch


def is_envpool(envs: Any) -> bool:
    """Whether `envs` was made by EnvPool; told without importing it."""
    return any(base.__module__.startswith("envpool.") for base in type(envs).__mro__)


class EnvPoolPool(BasePool):
    """Two groups where the library's batches fit into them, else one."""

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], name: str, check_bounds: bool = True
    ) -> None:
        self._envs = cast(Any, envs)
        config = self._envs.config
        n_envs, self._batch_size = int(config["num_envs"]), int(config["batch_size"])
        _check(config)
        self._plain = not isinstance(envs.single_observation_space, Dict)
        spec = describe(name, envs.single_observation_space, envs.single_action_space, {})
        super().__init__(spec, n_envs)
        if n_envs % (2 * self._batch_size) == 0:
            self.groups = (slice(0, n_envs // 2), slice(n_envs // 2, n_envs))
        self._rows = Rows(spec, n_envs)
        self._check = ValueCheck(self._rows, check_bounds)
        self._in_flight = 0
        self._done = np.zeros(n_envs, bool)
        """Answered by the library, and not handed out yet."""
        self._reset_next = np.zeros(n_envs, bool)
        """Ended an episode with its last answer, so that the next one is a reset."""

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment; `seed` is not heeded, and none can be brought back."""
        while self._in_flight:
            self._take_batch()
        self._reset_next[:] = False
        self._envs.async_reset()
        self._in_flight = self.n_envs
        while self._in_flight:
            self._take_batch()
        self._done[:] = False
        self._rows.valid[:] = journal is None
        return self._check.accept(self._rows.batch(), acted=False)

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        if len(env_ids) % self._batch_size:
            raise ConfigError(
                f"EnvPool answers in batches of {self._batch_size}, and {len(env_ids)} actions "
                "were sent, so some would stay unanswered. Send a multiple of the batch size, or "
                "make the environments with a smaller batch_size."
            )
        self._envs.send(self.codec.encode(actions), env_ids.astype(np.int32))
        self._in_flight += len(env_ids)

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        """See `types.Pool`; the library has no time limit, so `patience` ends at its next batch."""
        wanted = among or EVERYONE
        while self._in_flight and np.count_nonzero(self._done[wanted]) < at_least:
            self._take_batch()
            if patience is not None:
                break
        first = wanted.indices(self.n_envs)[0]
        ready = np.flatnonzero(self._done[wanted]) + first
        self._done[ready] = False
        # Actions are not kept: the library takes them as they come.
        return self._check.accept(self._rows.batch(as_range(ready)), acted=False)

    def close(self) -> None:
        self._envs.close()

    def _take_batch(self) -> None:
        """Note one of the library's batches in the rows."""
        obs, reward, terminated, truncated, info = self._envs.recv()
        ids, rows = info["env_id"], self._rows
        self._in_flight -= len(ids)
        rows.reward[ids], rows.terminated[ids] = reward, terminated
        rows.truncated[ids] = truncated & ~terminated
        rows.valid[ids] = ~self._reset_next[ids]
        ended = terminated | truncated
        self._reset_next[ids] = ended
        self._write(rows.obs, obs, ids)
        if ended.any():
            self._write(rows.final_obs, obs, ids)
        self._done[ids] = True

    def _write(self, into: HostObs, obs: Any, ids: np.ndarray) -> None:
        for leaf, kind in self.spec.observation.items():
            value = obs if self._plain else obs[leaf]
            into[leaf][ids] = value - kind.start if kind.start else value


def _check(config: dict[str, Any]) -> None:
    """Refuse what cannot be a pool, before anything is stepped."""
    n_envs, batch_size = config["num_envs"], config["batch_size"]
    if n_envs % batch_size:
        raise ConfigError(
            f"EnvPool was made with num_envs={n_envs} and batch_size={batch_size}; the batch size "
            "must divide the number of environments. Make it with one that does, or without."
        )
    if config["max_num_players"] > 1:
        raise ConfigError(
            f"EnvPool's environments have up to {config['max_num_players']} players each; Stoker "
            "trains one agent. Make them with one player (max_num_players=1)."
        )
