"""One environment and its row: step, auto-reset, replay. The same in every process."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np

from stoker.errors import EnvError
from stoker.pools.base import read_mask
from stoker.pools.rows import Rows
from stoker.types import HostObs

_CHECK = "Mend the environment (gymnasium.utils.env_checker.check_env finds such mistakes)."


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """The seed of one episode of one environment: splitmix64 over the three numbers."""
    mixed = (seed * 0x9E3779B97F4A7C15 + env_id) * 0x9E3779B97F4A7C15 + episode
    mixed &= 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) & 0x7FFFFFFF


class Slot:
    """Environment `index` of a pool, writing to its row."""

    def __init__(self, env: gymnasium.Env[Any, Any], rows: Rows, index: int) -> None:
        self.env, self.rows, self.index = env, rows, index
        self._leaves = rows.spec.observation
        self._plain = not isinstance(env.observation_space, gymnasium.spaces.Dict)
        self._scalar_action = rows.spec.action.kind == "discrete"
        self._seed = self._episode = 0

    def start(self, seed: int, episode: int, replay: Iterable[np.ndarray] | None = ()) -> None:
        """Begin `episode`, and replay the actions already taken in it.

        `replay` is None if they are not known. The row is valid only if the episode stands where
        the actions led.
        """
        rows, row = self.rows, self.index
        self._seed, self._episode = seed, episode
        self._reset()
        arrived = replay is not None
        for action in () if replay is None else replay:
            rows.action[row] = action
            self.step()
            if rows.terminated[row] or rows.truncated[row]:
                arrived = False  # it ended earlier than it did before: not deterministic
                break
        rows.reward[row] = 0.0
        rows.terminated[row] = rows.truncated[row] = False
        rows.valid[row] = arrived
        for values in rows.metrics.values():
            values[row] = np.nan  # unknown until a step is taken

    def step(self) -> None:
        """Take the row's action; where that ends the episode, begin the next one."""
        rows, row = self.rows, self.index
        action = int(rows.action[row]) if self._scalar_action else rows.action[row].copy()
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            rows.reward[row] = reward
            rows.terminated[row] = terminated
            rows.truncated[row] = truncated and not terminated
            for name, values in rows.metrics.items():
                values[row] = info.get("metrics", {}).get(name, np.nan)
        except Exception as error:
            raise self._blame("step", error, action) from error
        rows.valid[row] = True
        if terminated or truncated:
            self._write(rows.final_obs, obs)
            self._episode += 1
            self._reset()
        else:
            self._write(rows.obs, obs)
            self._write_mask(info)

    def close(self) -> None:
        self.env.close()

    def _reset(self) -> None:
        seed = episode_seed(self._seed, self.index, self._episode)
        try:
            obs, info = self.env.reset(seed=seed)
        except Exception as error:
            raise self._blame("reset", error) from error
        self._write(self.rows.obs, obs)
        self._write_mask(info)

    def _write(self, into: HostObs, obs: Any) -> None:
        row = self.index
        for leaf, array in into.items():
            expected = self._leaves[leaf]
            try:
                value = np.asarray(obs if self._plain else obs[leaf])
            except Exception as error:
                raise EnvError(
                    f"Environment {row} returned an observation whose leaf {leaf!r} cannot be "
                    f"read: {type(error).__name__}: {error}. {_CHECK}"
                ) from error
            alike = value.dtype == array.dtype or np.can_cast(value.dtype, array.dtype, "same_kind")
            if value.shape != expected.shape or not alike:
                raise EnvError(
                    f"Environment {row} returned the observation leaf {leaf!r} as {value.dtype} "
                    f"with shape {value.shape}; its space says {expected.dtype} with shape "
                    f"{expected.shape}. {_CHECK}"
                )
            array[row] = value - expected.start if expected.start else value

    def _write_mask(self, info: dict[str, Any]) -> None:
        if self.rows.action_mask is None:
            return
        if "action_mask" not in (info or ()):
            raise EnvError(
                f"Environment {self.index} gave info['action_mask'] before but not now; give it "
                "in every reset and step."
            )
        mask = read_mask(info["action_mask"], self.index, self.rows.spec)
        self.rows.action_mask[self.index] = mask

    def _blame(self, where: str, error: Exception, action: Any = None) -> EnvError:
        seed = episode_seed(self._seed, self.index, self._episode)
        taken = f", action {np.asarray(action).tolist()}" if action is not None else ""
        return EnvError(
            f"Environment {self.index} raised {type(error).__name__} in {where}(): {error}\n"
            f"Its episode began with reset(seed={seed}){taken}.\n{traceback.format_exc().rstrip()}"
        )
