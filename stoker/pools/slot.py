"""One environment and its row: step, auto-reset, replay, renewal. The same in every process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from stoker.errors import BadValueError, EnvError, EpisodeCutError, MissingAttributeError
from stoker.pools.awaited import RAISED, as_blocking
from stoker.pools.blame import API, CHECK, blame, circumstances, refusal, sketch
from stoker.pools.returned import UnreadableError, number, reset_env, truth
from stoker.pools.rows import Infos, Rows
from stoker.pools.spaces import describe
from stoker.pools.values import read_mask
from stoker.types import HostObs

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
MakeEnvs = MakeEnv | Sequence[MakeEnv]
"""How to make every environment of a pool, or each of its own."""
_PAUSE_S = 0.05
"""Before an environment that could not be renewed is tried again; twice as long each time."""


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
    """Environment `index` of a pool, writing to its row.

    What a step touches of the row is laid out beforehand as memoryviews: they cost half of what
    NumPy's scalar access does, and check dtype and shape of a plain vector by themselves.
    """

    def __init__(
        self,
        make_envs: MakeEnvs,
        rows: Rows,
        index: int,
        on_reset: Callable[[int], None] = lambda index: None,
    ) -> None:
        self.rows, self.index, self._on_reset = rows, index, on_reset
        self._make_env = make_envs[index] if isinstance(make_envs, Sequence) else make_envs
        self._seed: int | None = 0
        self._episode = 0
        self._episode_seed: int | None = 0
        self.info: Mapping[str, Any] = {}
        self.final_info: Mapping[str, Any] | None = None
        self.to_renew = False
        """Whether the next action is to be answered with a new episode instead of a step."""
        self._closed = False
        action = rows.spec.action
        self._scalar_actions = rows.action.data if action.kind == "discrete" else None
        self._rewards: Any = rows.reward.data
        self._ordinary = False  # terminated and truncated False, valid True, in the row as it is
        self._has_extras = bool(rows.spec.metric_names) or rows.spec.has_mask
        self._adopt(self._make_env())
        self._vector = self._plain_vector()

    def _adopt(self, env: gymnasium.Env[Any, Any]) -> None:
        """Take an environment that was just made, if its spaces are those of the others."""
        spec = self.rows.spec
        found = describe(spec.name, env.observation_space, env.action_space, {})
        for what, ours, theirs in (
            ("observation", found.observation, spec.observation),
            ("action", found.action, spec.action),
        ):
            if ours != theirs:
                raise EnvError(
                    f"Environment {self.index} has another {what} space than the one that was "
                    f"tried first: {ours}, where that had {theirs}. All environments of a pool "
                    "must have the same spaces: make them with the same arguments."
                )
        env = as_blocking(env)
        self.env, self._env_step = env, env.step
        self._plain = not isinstance(env.observation_space, gymnasium.spaces.Dict)

    def _plain_vector(self) -> memoryview | None:
        """The row's observation, where it is one vector that can be written in one go."""
        leaves = self.rows.spec.observation
        only = next(iter(leaves))
        fit = self._plain and leaves[only].kind == "vector" and len(leaves[only].shape) == 1
        return self.rows.obs[only][self.index].data if fit else None

    def start(self, seed: int, episode: int, replay: Iterable[np.ndarray] | None = ()) -> None:
        """Begin `episode`, and replay the actions already taken in it.

        `replay` is None if they are not known. The row is valid only if the episode stands where
        the actions led.
        """
        rows, row = self.rows, self.index
        self._seed, self.to_renew = seed, False
        self._begin(episode)
        arrived = replay is not None
        for action in () if replay is None else replay:
            rows.action[row] = action
            try:
                self.step()
            except EpisodeCutError:  # what it asks does not answer as it did
                arrived = False
                self._begin(episode + 1)
                break
            if rows.terminated[row] or rows.truncated[row]:
                arrived = False  # it ended earlier than it did before: not deterministic
                break
        self._mark_first(arrived)

    def restart(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Reset with a seed of the caller's; later episodes of it begin without one."""
        self._seed, self.to_renew = None, False
        self._on_reset(self.index)
        self._note_seed(seed)
        obs, self.info = reset_env(self.env, self.index, seed, options)
        self._show(obs)
        self._mark_first(True)

    def stand(self, seed: int | None, episode: int) -> None:
        """Take the place of an environment that was lost amid `episode`."""
        self._seed, self._episode, self.to_renew = seed, episode, True

    def reject(self) -> None:
        """Have the next answer be a new episode, as the row that was written is refused."""
        rows, row = self.rows, self.index
        if rows.terminated[row] or rows.truncated[row]:
            self._episode -= 1  # nobody has heard of the one that this row began
        self.to_renew = True

    def _mark_first(self, valid: bool) -> None:
        """The row of an observation that no action led to."""
        rows, row = self.rows, self.index
        rows.reward[row] = 0.0
        rows.terminated[row] = rows.truncated[row] = False
        rows.valid[row] = valid
        self._ordinary, self.final_info = valid, None
        for values in rows.metrics.values():
            values[row] = np.nan  # unknown until a step is taken

    def step(self) -> None:
        """Take the row's action; where that ends the episode, begin the next one."""
        action = self.action()
        try:
            returned = self._env_step(action)
        except EpisodeCutError as error:
            raise EpisodeCutError(str(error)) from error  # a class of the user's may not travel
        except RAISED as error:
            raise blame(self.index, "step", error, self._episode_seed, action) from error
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._refuse(sketch(returned), API["step"], action)
        obs, reward, terminated, truncated, info = returned
        if type(info) is not dict and not isinstance(info, Mapping):
            raise self._refuse(f"an info that is {type(info).__name__}", API["step"], action)
        self.info = info
        try:
            self._rewards[self.index] = reward if isinstance(reward, float) else number(reward)
            over = terminated or truncated
            if over or not self._ordinary:
                self._flag(truth(terminated), truth(truncated))
            if self._has_extras:
                self._write_metrics(info, action)
        except EnvError:
            raise
        except UnreadableError as error:
            raise self._refuse(error.found, error.expected, action) from error
        except Exception as error:
            raise blame(self.index, "step", error, self._episode_seed, action) from error
        if over:
            self.final_info = info
            self._write(self.rows.final_obs, obs, action)
            self._begin(self._episode + 1)
            return
        if self._vector is not None:
            try:
                self._vector[:] = obs
            except (TypeError, ValueError):  # of another dtype or shape: perhaps one that fits
                self._write(self.rows.obs, obs, action)
        else:
            self._write(self.rows.obs, obs, action)
        if info or self._has_extras:
            self._write_mask(info, action)

    def action(self) -> Any:
        """The row's, as the environment takes it."""
        scalars = self._scalar_actions
        return self.rows.action[self.index].copy() if scalars is None else scalars[self.index]

    def next_seed(self) -> int | None:
        """What the environment is reset with when this episode ends."""
        return self._seed_of(self._episode + 1)

    def note_reset(self) -> None:
        """The environment is about to be reset to `next_seed`, ahead of the `step` that says so."""
        self._on_reset(self.index)
        self.rows.note_seed(self.index, self.next_seed())

    def _seed_of(self, episode: int) -> int | None:
        return None if self._seed is None else episode_seed(self._seed, self.index, episode)

    def _flag(self, terminated: bool, truncated: bool) -> None:
        rows, row = self.rows, self.index
        rows.terminated[row], rows.truncated[row] = terminated, truncated and not terminated
        rows.valid[row] = True
        self._ordinary = not (terminated or truncated)
        self.final_info = None  # of an earlier step

    def answer(self, report: Callable[[EnvError], None]) -> bool:
        """Step, or where something is amiss renew the environment; whether the row is a step.

        `report` is told every fault, and may raise it instead of having it mended.
        """
        if not self.to_renew:
            try:
                self.step()
                return True
            except EnvError as error:
                self.mend(error, report)
                return False
        self._renew(report)
        return False

    def mend(self, error: EnvError, report: Callable[[EnvError], None]) -> None:
        """A step failed: begin the next episode, with another environment if this one failed."""
        report(error)
        if not isinstance(error, EpisodeCutError):
            self.close_quietly()
        self._renew(report)

    def _renew(self, report: Callable[[EnvError], None]) -> None:
        """A new environment in its place, at the beginning of the next episode."""
        self.to_renew, pause, attempt = False, _PAUSE_S, 0
        while True:
            try:
                self._on_reset(self.index)
                if self._closed:
                    self._adopt(self._make_env())
                    self._closed = False
                self._begin(self._episode + 1, attempt)
                break
            except (Exception, SystemExit) as error:
                if not isinstance(error, EnvError):
                    error = blame(self.index, "__init__", error, self._episode_seed)
                report(error)
            self.close_quietly()
            time.sleep(pause)
            pause, attempt = min(1.0, 2 * pause), attempt + 1
        self.final_info = None
        self.rows.cut(self.index)
        self._ordinary = False

    @property
    def infos(self) -> Infos:
        return Infos(self.info, self.final_info)

    def call(self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """What a method of the environment returns, or an attribute of it is; through wrappers."""
        found = self.get_attr(name)
        try:
            return found(*arguments, **keywords) if callable(found) else found
        except (Exception, SystemExit) as error:
            raise blame(self.index, name, error, self._episode_seed) from error

    def get_attr(self, name: str) -> Any:
        """An attribute of the environment, or of the wrapper that has it."""
        try:
            return self.env.get_wrapper_attr(name)
        except AttributeError as error:
            raise MissingAttributeError(
                f"Environment {self.index} has no attribute {name!r}: {error}"
            ) from error
        except (Exception, SystemExit) as error:
            raise blame(self.index, name, error, self._episode_seed) from error

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the environment, where its wrappers have it."""
        try:
            self.env.set_wrapper_attr(name, value)
        except (Exception, SystemExit) as error:
            raise blame(self.index, f"set {name}", error, self._episode_seed) from error

    def classes(self) -> set[str]:
        """Names of all classes that the environment and its wrappers are instances of.

        Names, as to send a class from elsewhere here would import its module, and torch perhaps.
        """
        found, layer = set[str](), self.env
        while True:
            found |= {f"{kind.__module__}.{kind.__qualname__}" for kind in type(layer).__mro__}
            if not isinstance(layer, gymnasium.Wrapper):
                return found
            layer = layer.env

    def close_quietly(self) -> None:
        """Close an environment whose own error would hide the one that matters."""
        self._closed = True
        with contextlib.suppress(Exception, SystemExit):
            self.env.close()

    def _begin(self, episode: int, attempt: int = 0) -> None:
        """Reset to the episode's seed; a seed that cannot be reset to is not tried twice."""
        self._on_reset(self.index)
        self._note_seed(self._seed_of(episode + (attempt << 32)))
        obs, self.info = reset_env(self.env, self.index, self._episode_seed)
        self._show(obs)
        self._episode = episode  # only now, so that a failed reset does not count one

    def _note_seed(self, seed: int | None) -> None:
        self._episode_seed = seed
        self.rows.note_seed(self.index, seed)

    def _show(self, obs: Any) -> None:
        self._write(self.rows.obs, obs)
        self._write_mask(self.info)

    def _write(self, into: HostObs, obs: Any, action: Any = None) -> None:
        row = self.index
        for leaf, array in into.items():
            expected = self.rows.spec.observation[leaf]
            try:
                value = np.asarray(obs if self._plain else obs[leaf])
            except Exception as error:
                raise self._bad_value(
                    f"Environment {row} returned an observation whose leaf {leaf!r} cannot be "
                    f"read: {type(error).__name__}: {error}. {CHECK}",
                    action,
                ) from error
            alike = value.dtype == array.dtype or np.can_cast(value.dtype, array.dtype, "same_kind")
            if value.shape != expected.shape or not alike:
                raise self._bad_value(
                    f"Environment {row} returned the observation leaf {leaf!r} as {value.dtype} "
                    f"with shape {value.shape}; its space says {expected.dtype} with shape "
                    f"{expected.shape}. {CHECK}",
                    action,
                )
            array[row] = value - expected.start if expected.start else value

    def _write_metrics(self, info: Mapping[str, Any], action: Any) -> None:
        given = info.get("metrics", {})
        try:
            for name, values in self.rows.metrics.items():
                values[self.index] = given.get(name, np.nan)
        except (AttributeError, TypeError, ValueError) as error:
            found = f"info['metrics'] = {given!r}"
            raise self._refuse(found, "It is a dict of numbers, by name.", action) from error

    def _write_mask(self, info: Mapping[str, Any], action: Any = None) -> None:
        if self.rows.action_mask is None:
            if "action_mask" in info:
                raise self._bad_value(
                    f"Environment {self.index} gives info['action_mask'] now but did not at its "
                    "first reset, so it was not asked for; give it in every reset and step.",
                    action,
                )
            return
        if "action_mask" not in info:
            raise self._bad_value(
                f"Environment {self.index} gave info['action_mask'] before but not now; give it "
                "in every reset and step.",
                action,
            )
        try:
            mask = read_mask(info["action_mask"], self.index, self.rows.spec)
        except BadValueError as error:
            raise self._bad_value(str(error), action) from error
        self.rows.action_mask[self.index] = mask

    def _bad_value(self, sentence: str, action: Any) -> BadValueError:
        return BadValueError(f"{sentence}\n{circumstances(self._episode_seed, action)}")

    def _refuse(self, found: str, expected: str, action: Any) -> EnvError:
        return refusal(self.index, "step", found, expected, self._episode_seed, action)
