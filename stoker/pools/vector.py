"""A foreign `gymnasium.vector.VectorEnv` as a pool, in each of its auto-reset modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode, VectorEnv

from stoker.errors import BadValueError, ConfigError, EnvError
from stoker.pools.base import BasePool
from stoker.pools.blame import API, sketch
from stoker.pools.rows import Rows
from stoker.pools.spaces import describe
from stoker.pools.values import ValueCheck, read_mask
from stoker.types import EpisodeJournal, HostObs, StepBatch


class VectorPool(BasePool):
    """Maps the three auto-reset modes of Gymnasium to same-step.

    - same-step: the final observation stands in the infos.
    - next-step: the step after an episode's end is a reset that ignores the action, so it is no
      transition: its row is not valid.
    - disabled: this pool resets what ended, in the same step.
    """

    def __init__(
        self, envs: VectorEnv[Any, Any, Any], name: str, check_bounds: bool = True
    ) -> None:
        mode = envs.metadata.get("autoreset_mode")
        try:
            self._mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
        except ValueError:
            known = ", ".join(str(m) for m in AutoresetMode)
            raise ConfigError(
                f"The vector environment's metadata['autoreset_mode'] is {mode!r}; Stoker knows "
                f"{known}. Set it to what the environment does when an episode ends."
            ) from None
        self._envs = envs
        self._plain = not isinstance(envs.single_observation_space, Dict)
        _, info = envs.reset(seed=0)
        spec = describe(
            name,
            envs.single_observation_space,
            envs.single_action_space,
            {key: value[0] for key, value in info.items() if key == "action_mask"},
        )
        super().__init__(spec, envs.num_envs)
        self._rows = Rows(spec, self.n_envs)
        self._check = ValueCheck(self._rows, check_bounds)
        self._reset_next = np.zeros(self.n_envs, bool)

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment; a foreign one cannot be brought back to mid-episode."""
        obs, info = self._envs.reset(seed=seed)
        self._reset_next[:] = False
        self._write(self._rows.obs, obs)
        self._write_mask(info)
        self._rows.valid[:] = journal is None
        self._rows.reward[:] = 0
        self._rows.terminated[:] = self._rows.truncated[:] = False
        return self._check.accept(self._rows.batch(), acted=False)

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        if len(env_ids) != self.n_envs:
            raise ConfigError(
                f"A vector environment steps all of its {self.n_envs} environments at once; "
                f"{len(env_ids)} actions were sent."
            )
        self._rows.action[env_ids] = self.codec.encode(actions)

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        rows = self._rows
        returned = self._envs.step(rows.action.copy())
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise EnvError(
                f"{self.spec.name} returned {sketch(returned)} from step(). {API['step']}"
            )
        obs, reward, terminated, truncated, info = returned
        rows.reward[:] = self._each("reward", reward)
        rows.terminated[:] = self._each("terminated", terminated)
        rows.truncated[:] = self._each("truncated", truncated).astype(bool) & ~rows.terminated
        rows.valid[:] = ~self._reset_next
        ended = rows.terminated | rows.truncated
        if self._mode is AutoresetMode.NEXT_STEP:
            self._reset_next = ended
        if ended.any():
            obs, info = self._end_episodes(ended, obs, info)
        self._write(rows.obs, obs)
        self._write_mask(info)
        return self._check.accept(rows.batch())

    def close(self) -> None:
        self._envs.close()

    def _end_episodes(self, ended: np.ndarray, obs: Any, info: Any) -> tuple[Any, Any]:
        """Note the final observations; the observation and info to go on with."""
        if self._mode is AutoresetMode.SAME_STEP:
            finals = info.get("final_obs")
            if finals is None:
                raise EnvError(
                    f"{self.spec.name} ended an episode in the auto-reset mode same-step without "
                    "info['final_obs']: give the last observation of each that ended there."
                )
            for row in np.flatnonzero(ended).tolist():
                self._write(self._rows.final_obs, _row_of(finals, row), row)
            return obs, info
        self._write(self._rows.final_obs, obs)
        if self._mode is AutoresetMode.DISABLED:
            self._write_mask(info, ~ended)  # the reset's infos are of those that ended alone
            return self._envs.reset(options={"reset_mask": ended})
        return obs, info

    def _write(self, into: HostObs, obs: Any, row: Any = slice(None)) -> None:
        for leaf, kind in self.spec.observation.items():
            value = np.asarray(obs if self._plain else obs[leaf])
            expected = into[leaf][row].shape
            if value.shape != expected:  # which NumPy would stretch over all of them
                raise BadValueError(
                    f"{self.spec.name} returned the observation leaf {leaf!r} with shape "
                    f"{value.shape}; expected {expected}, a row for each environment."
                )
            into[leaf][row] = value - kind.start if kind.start else value

    def _each(self, what: str, given: Any) -> np.ndarray:
        """One number or flag for each environment."""
        values = np.asarray(given)
        if values.shape != (self.n_envs,):
            raise BadValueError(
                f"{self.spec.name} returned {what} with shape {values.shape}; expected "
                f"({self.n_envs},), one for each environment."
            )
        return values

    def _write_mask(self, info: Any, rows: Any = True) -> None:
        """Note the masks that came, of `rows`; who resets next ignores its action and its mask."""
        if "action_mask" not in info:
            return
        if self._rows.action_mask is None:
            raise BadValueError(
                f"{self.spec.name} gives info['action_mask'] now but did not at its first reset, "
                "so it was not asked for; give it in every reset and step."
            )
        given = info.get("_action_mask", np.ones(self.n_envs, bool)) & rows & ~self._reset_next
        for row in np.flatnonzero(given).tolist():
            self._rows.action_mask[row] = read_mask(info["action_mask"][row], row, self.spec)


def _row_of(finals: Any, row: int) -> Any:
    """One environment's final observation, whether they came as a dict of arrays or an array."""
    if isinstance(finals, dict):
        return {leaf: values[row] for leaf, values in finals.items()}
    return finals[row]
