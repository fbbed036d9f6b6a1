"""One environment and its row: step, auto-reset, replay. The same in every process."""

from __future__ import annotations

import numbers
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from stoker.errors import EnvError
from stoker.pools.base import read_mask
from stoker.pools.rows import Rows
from stoker.types import HostObs

_CHECK = "Mend the environment (gymnasium.utils.env_checker.check_env finds such mistakes)."
_API = {
    "reset": "Gymnasium expects reset(*, seed=None, options=None) to return (observation, info).",
    "step": (
        "Gymnasium expects step(action) to return (observation, reward, terminated, truncated, "
        "info): the `done` of old is now terminated (the task ended) or truncated (cut short)."
    ),
}


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """The seed of one episode of one environment: splitmix64 over the three numbers.

    It is practically the episode's own, but not surely: it has the 32 bits that numpy's legacy
    seeding takes, so among 100,000 episodes expect one pair to share a seed.
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + env_id) * 0x9E3779B97F4A7C15 + episode
    mixed &= 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) & 0xFFFFFFFF


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
            returned = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise self._blame("step", error, action) from error
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._refuse("step", _sketch(returned), _API["step"], action)
        obs, reward, terminated, truncated, info = returned
        if not isinstance(reward, float):
            reward = self._number(reward, action)
        try:
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
        obs, info = reset_env(self.env, self.index, self._episode_seed)
        self._write(self.rows.obs, obs)
        self._write_mask(info)

    @property
    def _episode_seed(self) -> int:
        return episode_seed(self._seed, self.index, self._episode)

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

    def _number(self, reward: Any, action: Any) -> Any:
        """A reward that is no float, as a number; text, None and the like are refused."""
        if isinstance(reward, numbers.Real):
            return reward
        if hasattr(reward, "__array__"):
            try:
                value = np.asarray(reward)
            except Exception as error:
                raise self._blame("step", error, action) from error
            if value.size == 1 and value.dtype.kind in "biuf":
                return value.item()
        found = f"the reward {reward!r} ({type(reward).__name__})"
        raise self._refuse("step", found, "A reward is one real number.", action)

    def _refuse(self, where: str, found: str, expected: str, action: Any) -> EnvError:
        return _refusal(self.index, where, found, expected, self._episode_seed, action)

    def _blame(self, where: str, error: BaseException, action: Any) -> EnvError:
        return _blame(self.index, where, error, self._episode_seed, action)


def reset_env(env: gymnasium.Env[Any, Any], index: int, seed: int) -> tuple[Any, Any]:
    """Reset environment `index` of a pool: its observation and info, or an EnvError."""
    try:
        returned = env.reset(seed=seed)
    except (Exception, SystemExit) as error:
        raise _blame(index, "reset", error, seed) from error
    alike = isinstance(returned, tuple) and len(returned) == 2
    if not alike or not isinstance(returned[1], Mapping):
        raise _refusal(index, "reset", _sketch(returned), _API["reset"], seed)
    return returned


def _blame(index: int, where: str, error: BaseException, seed: int, action: Any = None) -> EnvError:
    advice = _advice(where, error)
    return EnvError(
        f"Environment {index} raised {type(error).__name__} in {where}(): {error}\n"
        f"{_circumstances(seed, action)}\n{traceback.format_exc().rstrip()}"
        + (f"\n{advice}" if advice else "")
    )


def _refusal(
    index: int, where: str, found: str, expected: str, seed: int, action: Any = None
) -> EnvError:
    return EnvError(
        f"Environment {index} returned {found} from {where}(). {expected} {_CHECK}\n"
        f"{_circumstances(seed, action)}"
    )


def _circumstances(seed: int, action: Any) -> str:
    taken = f", action {np.asarray(action).tolist()}" if action is not None else ""
    return f"Its episode began with reset(seed={seed}){taken}."


def _sketch(returned: Any) -> str:
    """What came back, without its numbers."""
    if not isinstance(returned, tuple):
        return f"one {type(returned).__name__}"
    kinds = ", ".join(type(value).__name__ for value in returned)
    return f"{len(returned)} values ({kinds})"


def _advice(where: str, error: BaseException) -> str:
    """What to do about an error that comes of an old API, or of leaving; else nothing."""
    if isinstance(error, SystemExit):
        return (
            "sys.exit() in an environment would end the training. To end an episode, return "
            "terminated or truncated; to report a fault, raise an error that names it."
        )
    text = str(error)
    if where == "reset" and isinstance(error, TypeError) and "unexpected keyword" in text:
        return _API["reset"]
    if isinstance(error, ValueError) and "to unpack" in text:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if "gymnasium" in raised_in.parts:  # a wrapper's, so not the environment's own business
            return _API[where]
    return ""
