"""JAX environments in gymnax's shape as a vector environment on the device, over DLPack."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.errors import ConfigError, SpaceError

if TYPE_CHECKING:
    from torch import Tensor


class JaxVectorEnv:
    """`num_envs` of a functional environment, compiled as one. Implements `types.DeviceVectorEnv`.

    `env` has `reset_env(key, params)`, which gives an observation and a state, and `step_env(key,
    state, action, params)`, which gives these, a reward, done and infos; then what an episode saw
    last is known. Or it has `reset` and `step`, which resets by itself: then it is not. The spaces
    `observation_space` and `action_space` are Gymnasium's or gymnax's, or methods that give one for
    `params`.

    A `done` when `state.time` has come to `params.max_steps_in_episode` is a truncation, unless
    `info["truncated"]` says which are. As in gymnax from 1.0 on, `is_truncated(state, params)`, or
    `truncated` next to `done`, may tell instead; then `done` is what terminated.
    """

    def __init__(self, env: Any, num_envs: int, device: Any = "cpu", params: Any = None) -> None:
        import torch  # late: the registry's room is imported by workers

        self._torch: Any = torch
        self._jax = _jax()
        self.num_envs, self.device = num_envs, torch.device(device)
        self._place = _device(self._jax, self.device)
        self._env = env
        self._params = getattr(env, "default_params", None) if params is None else params
        self._resets = not (hasattr(env, "step_env") and hasattr(env, "reset_env"))
        """Whether `step` begins the next episode by itself."""
        self.single_observation_space = _space(env, "observation_space", self._params)
        self.single_action_space = _space(env, "action_space", self._params)
        self._begin, self._advance = self._of_all(self._first), self._of_all(self._next)
        self._key: Any = None
        self._state: Any = None

    def reset(self, seed: int = 0) -> tuple[Any, dict[str, Any]]:
        """The first observations, [N, ...], and no extras."""
        with self._jax.default_device(self._place):
            self._key, (obs, self._state) = self._begin(self._jax.random.PRNGKey(seed))
        return self._handed(obs), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Observations, rewards, what was terminated and what truncated, [N, ...], and extras.

        JAX computes on a stream of its own. Whoever takes a tensor over DLPack says on which stream
        it will be used, and whoever gives it lets that stream wait until it has been computed: so
        this step comes after the actions, and what torch does next after this step. That also
        keeps memory that one of them frees from being written to by it before the other has read
        it: between two steps the one always takes something from the other.
        """
        if actions.dtype == self._torch.int64:
            actions = actions.to(self._torch.int32)  # JAX has no others, unless told to
        with self._jax.default_device(self._place):
            taken = self._jax.dlpack.from_dlpack(actions.detach().contiguous())
            self._key, (self._state, came) = self._advance(self._key, self._state, taken)
        obs, reward, terminated, truncated, final_obs = self._handed(came)
        extras = {} if final_obs is None else {"final_obs": final_obs}
        return obs, reward, terminated, truncated, extras

    def _of_all(self, function: Any) -> Any:
        """`function` of a key and what else there is of each, compiled; and the next key."""

        def whole(key: Any, *given: Any) -> tuple[Any, Any]:
            following, key = self._jax.random.split(key)
            keys = self._jax.random.split(key, self.num_envs)
            return following, self._jax.vmap(function)(keys, *given)

        return self._jax.jit(whole)

    def _handed(self, arrays: Any) -> Any:
        """The same as tensors, in the same memory."""
        return self._jax.tree.map(self._torch.from_dlpack, arrays)

    def _first(self, key: Any) -> tuple[Any, Any]:
        obs, state = (self._env.reset if self._resets else self._env.reset_env)(key, self._params)
        return self._seen(obs), state

    def _next(self, key: Any, state: Any, action: Any) -> tuple[Any, tuple[Any, ...]]:
        """One environment's step: its next state, and what is told of it."""
        numpy, (step_key, reset_key) = self._jax.numpy, self._jax.random.split(key)
        step = self._env.step if self._resets else self._env.step_env
        obs, led_to, reward, *ends, info = step(step_key, state, action, self._params)
        ends = [numpy.asarray(end, bool) for end in ends]
        terminated, truncated = self._told_apart(ends, state, led_to, info)
        rest = (numpy.asarray(reward, numpy.float32), terminated, truncated)
        if self._resets:
            final_obs = info.get("final_observation")
            told = None if final_obs is None else self._seen(final_obs)
            return led_to, (self._seen(obs), *rest, told)

        def chosen(new: Any, old: Any) -> Any:
            return numpy.where(terminated | truncated, new, old)

        final_obs, fresh = self._seen(obs), self._first(reset_key)
        obs, state = self._jax.tree.map(chosen, fresh, (final_obs, led_to))
        return state, (obs, *rest, final_obs)

    def _told_apart(self, ends: list[Any], state: Any, led_to: Any, info: Any) -> tuple[Any, Any]:
        """Whether it terminated, and whether it was cut short: of what a step said of its end."""
        over, *cut = ends
        if not (cut or self._resets) and hasattr(self._env, "is_truncated"):
            cut = [self._env.is_truncated(led_to, self._params)]
        if cut:  # gymnax from 1.0 on: what ended by itself is told apart
            return over, cut[0] & ~over
        longest = getattr(self._params, "max_steps_in_episode", None)
        late = self._jax.numpy.zeros_like(over)
        if "truncated" in info:
            late = self._jax.numpy.asarray(info["truncated"], bool)
        elif longest is not None and hasattr(state, "time"):
            late = (state.time + 1 if self._resets else led_to.time) >= longest
        return over & ~late, over & late

    def _seen(self, obs: Any) -> Any:
        """An observation in the types of its space."""
        space, numpy = self.single_observation_space, self._jax.numpy
        if isinstance(space, spaces.Dict):
            return {n: numpy.asarray(obs[n], _type(part)) for n, part in space.items()}
        return numpy.asarray(obs, _type(space))


def _type(space: Any) -> Any:
    if isinstance(space, spaces.Discrete):
        return np.int32
    return np.uint8 if space.dtype == np.uint8 else np.float32


def _jax() -> Any:
    # Else it takes three quarters of the GPU's memory as it starts, and torch is there, too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import jax.dlpack
    except ImportError as error:
        raise ConfigError(
            "This environment needs JAX, which is not installed: pip install 'stoker[jax]', and "
            "for a GPU pip install 'jax[cuda12]'."
        ) from error
    return jax


def _device(jax: Any, device: Any) -> Any:
    """What JAX calls a device of torch."""
    try:
        known = jax.devices(device.type)
    except RuntimeError:  # which it says of a kind that it knows nothing of
        known = []
    for each in known:
        if each.local_hardware_id == (device.index or 0):
            return each
    raise ConfigError(
        f"This environment is to run on {device}, and JAX has only {jax.devices()}. For a GPU, "
        "pip install 'jax[cuda12]'; or train with --device cpu."
    )


def _space(env: Any, which: str, params: Any) -> Any:
    """A space of it as one of Gymnasium's, from what it has or what its method gives."""
    held = getattr(env, which, None)
    if callable(held) and not isinstance(held, gymnasium.Space):
        held = held(params)
    return _gymnasiums(held, which)


def _gymnasiums(space: Any, which: str) -> Any:
    if isinstance(space, gymnasium.Space):
        return space
    if hasattr(space, "spaces"):
        return spaces.Dict({n: _gymnasiums(part, which) for n, part in space.spaces.items()})
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if all(hasattr(space, name) for name in ("low", "high", "shape")):
        kind = np.uint8 if getattr(space, "dtype", None) == np.uint8 else np.float32
        low, high = (
            np.broadcast_to(np.asarray(bound, kind), space.shape)
            for bound in (space.low, space.high)
        )
        return spaces.Box(low, high, dtype=kind)
    raise SpaceError(
        f"{which} is {space!r}. It has to be a space of Gymnasium, or a Box, Discrete or Dict of "
        "gymnax, or a method that gives one for the parameters."
    )
