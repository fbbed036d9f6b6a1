"""JAX environments for tests, in gymnax's shape. To be imported where JAX is installed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from stoker.envs.jax_vector import JaxVectorEnv

TOP = 4


class Params(NamedTuple):
    max_steps_in_episode: int = 11


class State(NamedTuple):
    rung: Any
    time: Any
    luck: Any


class Rungs:
    """`tensor_envs.Ladder`, but that it shows a number drawn when the episode began."""

    default_params = Params()
    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)

    def action_space(self, params: Params) -> Any:
        return spaces.Discrete(2)

    def reset_env(self, key: Any, params: Params) -> Any:
        state = State(jnp.int32(0), jnp.int32(0), jax.random.uniform(key))
        return self.look(state), state

    def step_env(self, key: Any, state: State, action: Any, params: Params) -> Any:
        state = State(state.rung + 2 * action - 1, state.time + 1, state.luck)
        done = (state.rung >= TOP) | (state.time >= params.max_steps_in_episode)
        return self.look(state), state, state.rung, done, {}

    def look(self, state: State) -> Any:
        return jnp.stack([state.rung, state.time, state.luck])


class Own:
    """Only `reset` and `step`, which resets by itself; the `new` form tells all, the old little."""

    default_params = Params()
    observation_space, action_space = Rungs.observation_space, Rungs.action_space

    def __init__(self, form: str = "old") -> None:
        self.form, self._inner = form, Rungs()

    def reset(self, key: Any, params: Params) -> Any:
        return self._inner.reset_env(key, params)

    def step(self, key: Any, state: State, action: Any, params: Params) -> Any:
        seen, led_to, reward, done, _ = self._inner.step_env(key, state, action, params)
        first, fresh = self.reset(key, params)
        obs, state = jax.tree.map(
            lambda new, old: jnp.where(done, new, old), (first, fresh), (seen, led_to)
        )
        if self.form == "old":
            return obs, state, reward, done, {}
        ends = led_to.rung >= TOP, led_to.time >= params.max_steps_in_episode
        return obs, state, reward, *ends, {"final_observation": seen}


def rungs(num_envs: int, device: str) -> JaxVectorEnv:
    return JaxVectorEnv(Rungs(), num_envs, device)
