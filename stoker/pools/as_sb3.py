"""A pool as a `VecEnv` of Stable-Baselines3, for its trainers and those built on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from stoker.errors import ConfigError
from stoker.pools.direct import DirectPool
from stoker.pools.own_terms import Info, OwnTerms
from stoker.types import HostObs

try:
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor
except ImportError as error:
    raise ConfigError(
        f"Stable-Baselines3 cannot be imported ({error}). Install it: "
        "pip install stable-baselines3, or pip install 'stoker[bench]'."
    ) from error

Stepped = tuple[Any, np.ndarray, np.ndarray, list[Info]]


class PoolVecEnv(VecEnv):
    """Behaves as Stable-Baselines3's `SubprocVecEnv` does.

    A row that a mended fault cut off is a truncation with `cut_off` in its info.
    """

    def __init__(self, pool: DirectPool, env: gymnasium.Env[Any, Any]) -> None:
        self._terms, self._pool = OwnTerms(pool, env), pool
        self._waiting = self._closed = False
        super().__init__(pool.n_envs, env.observation_space, env.action_space)
        self.metadata = dict(env.metadata)

    def reset(self) -> Any:
        self._check_open()
        if self._waiting:  # what was asked for is not wanted any more
            self._pool.recv(self.num_envs)
            self._waiting = False
        everyone = np.arange(self.num_envs)
        if all(options == self._options[0] for options in self._options):
            obs = self._restart(everyone, self._options[0])
        else:
            each = [self._restart(everyone[i : i + 1], o) for i, o in enumerate(self._options)]
            obs = {leaf: np.concatenate([one[leaf] for one in each]) for leaf in each[0]}
        self._reset_seeds()
        self._reset_options()
        return self._terms.observations(obs)

    def _restart(self, env_ids: np.ndarray, options: Info) -> HostObs:
        seeds = [self._seeds[i] for i in env_ids.tolist()]
        batch = self._pool.restart(env_ids, seeds, options or None)
        for env_id in env_ids.tolist():
            self.reset_infos[env_id] = {}
        for env_id, info, _ in self._terms.infos(batch):
            self.reset_infos[env_id] = info
        return {leaf: rows.copy() for leaf, rows in batch.obs.items()}

    def step_async(self, actions: np.ndarray) -> None:
        self._check_open()
        self._pool.send(self._terms.actions(actions), np.arange(self.num_envs))
        self._waiting = True

    def step_wait(self) -> Stepped:
        batch = self._pool.recv(self.num_envs)
        self._waiting = False
        infos: list[Info] = [{"TimeLimit.truncated": cut} for cut in batch.truncated.tolist()]
        for env_id, info, final_info in self._terms.infos(batch):
            if final_info is not None:
                last = self._terms.observation(batch.final_obs, env_id)
                infos[env_id]["terminal_observation"] = last
                self.reset_infos[env_id], info = info, final_info
            infos[env_id] = info | infos[env_id]
        done = batch.terminated | batch.truncated
        return self._terms.observations(batch.obs), batch.reward.copy(), done, infos

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self._pool.get_attr(attr_name, self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        chosen = self._chosen(indices)
        self._pool.set_attr(attr_name, [value] * len(chosen), chosen)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        return self._pool.call(
            method_name, *method_args, env_ids=self._chosen(indices), **method_kwargs
        )

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        name = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        return [name in found for found in self._pool.classes(self._chosen(indices))]

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return self.env_method("render")

    def close(self) -> None:
        self._closed = True
        self._pool.close()

    def _chosen(self, indices: Any) -> list[int]:
        self._check_open()
        return list(self._get_indices(indices))

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("These environments were closed; make new ones.")


def monitored(envs: PoolVecEnv) -> VecMonitor:
    """The same with returns and lengths of episodes in the infos, which SB3's log shows."""
    return VecMonitor(envs)
