"""From Gymnasium spaces to specs, and from policy actions to environment actions."""

from __future__ import annotations

import traceback
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.errors import EnvError, SpaceError
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

_MOST_CATEGORIES = 10_000_000


def describe(
    name: str, observation: Any, action: Any, first_info: dict[str, Any], metric_names: Any = ()
) -> EnvSpec:
    """The spec of an environment with these spaces, whose first reset gave `first_info`."""
    if isinstance(observation, spaces.Dict):
        _check_keys(observation)
    leaves = (
        {key: _leaf(space, f"observation[{key!r}]") for key, space in observation.items()}
        if isinstance(observation, spaces.Dict)
        else {PLAIN: _leaf(observation, "observation")}
    )
    if not leaves:
        raise SpaceError("The observation space is an empty Dict; give the policy something.")
    spec = EnvSpec(name, leaves, _action(action), metric_names=_names(metric_names))
    if "action_mask" not in first_info:
        return spec
    if not spec.action.nvec:
        raise SpaceError(
            f"info['action_mask'] came with the action space {action}. Masks work with Discrete "
            "and MultiDiscrete actions; remove the mask, or make the actions discrete."
        )
    spec = EnvSpec(name, leaves, spec.action, True, spec.metric_names)
    try:
        found: Any = np.shape(first_info["action_mask"])
    except ValueError:
        found = "rows of several lengths"
    if isinstance(found, str) or int(np.prod(found)) != spec.mask_width:
        raise SpaceError(
            f"info['action_mask'] has the shape {found}; {action} needs {spec.mask_width} entries "
            "in a row, one for each choice of each action, True where the choice is allowed."
        )
    return spec


def describe_env(name: str, env: gymnasium.Env[Any, Any], first_info: dict[str, Any]) -> EnvSpec:
    """The spec of one (not vectorised) environment."""
    metric_names = getattr(env.unwrapped, "metric_names", ())
    observation, action = (_space(env, which) for which in ("observation_space", "action_space"))
    return describe(name, observation, action, first_info, metric_names)


def _space(env: gymnasium.Env[Any, Any], which: str) -> Any:
    try:
        return getattr(env, which)
    except (Exception, SystemExit) as error:
        raise EnvError(
            f"The environment raised {type(error).__name__} when asked for its {which}: {error}\n"
            f"{traceback.format_exc().rstrip()}\nSet self.{which} in its __init__, to a "
            "gymnasium.spaces.Box for one."
        ) from error


def _names(given: Any) -> tuple[str, ...]:
    write = 'write metric_names = ("comfort",), a tuple of names.'
    if isinstance(given, str):
        raise SpaceError(f"metric_names is the text {given!r}; write metric_names = ({given!r},).")
    try:
        names = tuple(given)
    except TypeError:
        raise SpaceError(f"metric_names is {given!r}; {write}") from None
    for name in names:
        if not isinstance(name, str):
            found = f"{name!r} ({type(name).__name__})"
            raise SpaceError(f"metric_names holds {found}, which is no text; {write}")
    return names


def _check_keys(observation: spaces.Dict) -> None:
    odd = [key for key in observation.spaces if not isinstance(key, str)]
    if odd:
        raise SpaceError(
            f"The observation space has the key {odd[0]!r} ({type(odd[0]).__name__}); name its "
            "entries by text, as checkpoints keep them."
        )


def _refuse_too_many(n: int, where: str, space: Any) -> None:
    if n > _MOST_CATEGORIES:
        raise SpaceError(
            f"{where} is {space}: {n:,} categories, of which a network would need a number each; "
            f"{_MOST_CATEGORIES:,} are the most. Say the same in several numbers."
        )


def _leaf(space: Any, where: str) -> LeafSpec:
    if isinstance(space, spaces.Box) and 0 in space.shape:
        raise SpaceError(f"{where} is {space}, which holds nothing; give the policy something.")
    if isinstance(space, spaces.Discrete):
        _refuse_too_many(int(space.n), where, space)
        return LeafSpec("discrete", (), "int64", n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and len(space.shape) in (2, 3):
            last = len(space.shape) == 2 or int(np.argmin(space.shape)) != 0
            return LeafSpec("image", space.shape, "uint8", channels_last=last)
        low, high = (_bound(values) for values in (space.low, space.high))
        return LeafSpec("vector", space.shape, "float32", low=low, high=high)
    if isinstance(space, spaces.Dict):
        raise SpaceError(
            f"{where} is a Dict inside a Dict: {space}. Lift its entries into the outer Dict, or "
            "wrap the environment with gymnasium.wrappers.FlattenObservation."
        )
    remedy = (
        "wrap the environment with gymnasium.wrappers.FlattenObservation to turn it into a Box"
        if _is_flattenable(space)
        else "write a gymnasium.ObservationWrapper that turns it into one of these"
    )
    raise SpaceError(f"{where} is {space}. Stoker reads Box, Discrete and Dict of these; {remedy}.")


def _is_flattenable(space: Any) -> bool:
    try:
        return bool(getattr(space, "is_np_flattenable", False))
    except NotImplementedError:  # a space of the user's own that does not say
        return False


def _bound(values: np.ndarray) -> tuple[float, ...]:
    """The bounds of a Box on one side: all of them, or one if they are equal, or none at all."""
    distinct = np.unique(values)
    if not np.isfinite(distinct).any():
        return ()
    return tuple(float(x) for x in (distinct if distinct.size == 1 else values.ravel()))


def _action(space: Any) -> ActionSpec:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        most = int(np.max(getattr(space, "nvec", getattr(space, "n", 0)), initial=0))
        _refuse_too_many(most, "The action space", space)
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (), "int64", (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        start = np.broadcast_to(getattr(space, "start", 0), space.shape)
        return ActionSpec(
            "multi_discrete",
            space.shape,
            str(space.dtype),
            tuple(int(n) for n in space.nvec.ravel()),
            tuple(int(s) for s in start.ravel()),
        )
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_binary", space.shape, str(space.dtype))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpec(
            "box",
            space.shape,
            str(space.dtype),
            low=tuple(float(x) for x in space.low.ravel()),
            high=tuple(float(x) for x in space.high.ravel()),
        )
    raise SpaceError(
        f"The action space is {space}. Stoker acts in Discrete, MultiDiscrete, MultiBinary and "
        "Box (floating point); write a gymnasium.ActionWrapper that turns one of these into it."
    )


class ActionCodec:
    """Turns policy actions [n, A] into what the environments take, [n, *shape].

    Continuous actions arrive on the policy's scale: where both bounds are finite, [-1, 1] covers
    [low, high], and what lies outside is clipped.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec
        self._start = np.asarray(spec.start, np.int64)
        if spec.continuous:
            self._low, self._high = np.asarray(spec.low), np.asarray(spec.high)
            finite = np.isfinite(self._low) & np.isfinite(self._high)
            low, high = np.where(finite, self._low, -1.0), np.where(finite, self._high, 1.0)
            self._centre, self._half = (low + high) / 2, (high - low) / 2

    def encode(self, actions: np.ndarray) -> np.ndarray:
        if self.spec.continuous:
            scaled = self._centre + self._half * actions
            encoded = np.clip(scaled, self._low, self._high)
        elif self.spec.kind == "multi_binary":
            encoded = actions
        else:
            encoded = actions + self._start
        return encoded.reshape(len(actions), *self.spec.shape).astype(self.spec.dtype, copy=False)
