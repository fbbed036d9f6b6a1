"""A pool as a `gymnasium.vector.VectorEnv`, for any trainer that takes one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from stoker.pools.direct import DirectPool
from stoker.pools.own_terms import Info, OwnTerms
from stoker.pools.rows import Rows
from stoker.types import HostObs

Stepped = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]


class PoolVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Behaves as Gymnasium's own vector environments do, in each of their auto-reset modes.

    The pool resets an environment in the step that ends its episode. In the modes next-step and
    disabled, the beginning of the next episode is held back until it is asked for: what is
    returned is the same, but whoever looks into the environment finds it there already. A row
    that a mended fault cut off is a truncation with `cut_off` in its info. Without `copy`, the
    next step overwrites observations.
    """

    def __init__(
        self,
        pool: DirectPool,
        env: gymnasium.Env[Any, Any],
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        copy: bool = True,
    ) -> None:
        self._terms, self._pool, self.copy = OwnTerms(pool, env), pool, copy
        self.num_envs, self.autoreset_mode = pool.n_envs, AutoresetMode(autoreset_mode)
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        self._shown: HostObs = Rows(pool.spec, self.num_envs).obs
        """The observations that were returned last."""
        self._due = np.zeros(self.num_envs, bool)
        """Whose next episode is held back, and not asked for yet."""
        self._first: HostObs = Rows(pool.spec, self.num_envs).obs
        self._first_infos: list[Info] = [{} for _ in range(self.num_envs)]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Info | None = None
    ) -> tuple[Any, Info]:
        self._check_open()
        seeds = _seeds(seed, self.num_envs)
        mask = np.ones(self.num_envs, bool)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        begun = mask & self._due if seed is None and not options else np.zeros_like(mask)
        infos = self._show_first(begun)
        ids = np.flatnonzero(mask & ~begun)
        if ids.size:
            batch = self._pool.restart(ids, [seeds[i] for i in ids.tolist()], options)
            self._show(batch.env_ids, batch.obs)
            infos |= {env_id: info for env_id, info, _ in self._terms.infos(batch)}
        self._due &= ~mask
        return self._terms.observations(self._shown, self.copy), self._joined(infos)

    def step(self, actions: Any) -> Stepped:
        self._check_open()
        rows = self._terms.actions(actions)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            return self._step_with_resets(rows)
        return self._step_without_resets(rows)

    def _step_with_resets(self, actions: np.ndarray) -> Stepped:
        batch = self._pool.step(actions)
        self._show(batch.env_ids, batch.obs)
        infos: dict[int, Info] = {}
        for env_id, info, final_info in self._terms.infos(batch):
            if final_info is not None:
                last = self._terms.observation(batch.final_obs, env_id)
                info = {"final_obs": last, "final_info": final_info, **info}
            infos[env_id] = info
        reward = batch.reward.astype(np.float64)
        return self._returned(reward, batch.terminated.copy(), batch.truncated.copy(), infos)

    def _step_without_resets(self, actions: np.ndarray) -> Stepped:
        """Step those whose episode goes on; the others show the next one's beginning."""
        if self.autoreset_mode is AutoresetMode.DISABLED and self._due.any():
            raise ResetNeeded(
                f"The episodes of environments {np.flatnonzero(self._due).tolist()} have ended; "
                "reset them with reset(options={'reset_mask': terminations | truncations})."
            )
        infos, ids = self._show_first(self._due), np.flatnonzero(~self._due)
        reward = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        if ids.size:
            self._pool.send(actions[ids], ids)
            batch = self._pool.recv(len(ids))
            ids = batch.env_ids
            reward[ids], terminated[ids], truncated[ids] = batch[2:5]
            ended = batch.terminated | batch.truncated
            self._show(ids[~ended], {leaf: rows[~ended] for leaf, rows in batch.obs.items()})
            self._show(ids[ended], {leaf: rows[ended] for leaf, rows in batch.final_obs.items()})
            for leaf, rows in batch.obs.items():
                self._first[leaf][ids[ended]] = rows[ended]
            for env_id, info, final_info in self._terms.infos(batch):
                if final_info is not None:
                    self._first_infos[env_id] = info
                infos[env_id] = info if final_info is None else final_info
        self._due = terminated | truncated
        return self._returned(reward, terminated, truncated, infos)

    def _returned(
        self,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: dict[int, Info],
    ) -> Stepped:
        shown = self._terms.observations(self._shown, self.copy)
        return shown, reward, terminated, truncated, self._joined(infos)

    def _show(self, env_ids: np.ndarray, obs: HostObs) -> None:
        for leaf, rows in obs.items():
            self._shown[leaf][env_ids] = rows

    def _show_first(self, which: np.ndarray) -> dict[int, Info]:
        """Show the beginnings that were held back, of `which` environments [N]; their infos."""
        self._show(which, {leaf: rows[which] for leaf, rows in self._first.items()})
        return {env_id: self._first_infos[env_id] for env_id in np.flatnonzero(which).tolist()}

    def _joined(self, infos: dict[int, Info]) -> Info:
        """One dict of arrays, in Gymnasium's layout, whose dtypes the first of them decides."""
        joined: Info = {}
        for env_id in sorted(infos):
            joined = self._add_info(joined, infos[env_id], env_id)
        return joined

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What a method of each environment returns, or its attribute of that name."""
        self._check_open()
        return tuple(self._pool.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute to one value everywhere, or to a list's or tuple's, one each."""
        self._check_open()
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(
                f"{len(each)} values were given for {self.num_envs} environments; give one for "
                "all (not in a list), or one for each."
            )
        self._pool.set_attr(name, each)

    def render(self) -> tuple[Any, ...]:
        return self.call("render")

    @property
    def np_random_seed(self) -> Any:
        """The seed of each environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """A copy of each environment's generator."""
        return self.get_attr("np_random")

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("These environments were closed; make new ones.")


def _seeds(seed: Any, n_envs: int) -> list[int | None]:
    """One seed an environment, as Gymnasium spreads them."""
    if seed is None:
        return [None] * n_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(n_envs)]
    if len(seed) != n_envs:
        raise ValueError(f"{len(seed)} seeds were given for {n_envs} environments; give one each.")
    return list(seed)


def _checked_mask(mask: Any, n_envs: int) -> np.ndarray:
    """`mask` if it is one; the kinds of error are Gymnasium's."""
    where = "options['reset_mask']"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{where} is a {type(mask).__name__}; give a NumPy array of booleans.")
    if mask.shape != (n_envs,):
        raise ValueError(f"{where} has shape {mask.shape}; it must be ({n_envs},).")
    if mask.dtype != np.bool_:
        raise TypeError(f"{where} has dtype {mask.dtype}; it must be bool.")
    if not mask.any():
        raise ValueError(f"{where} is all False; set it where an environment is to be reset.")
    return mask
