"""A pool in its environments' own terms: their actions, their observations, their infos.

What the learner is given is made for it: actions on the policy's scale, observations as leaves of
float32, categories from 0. Whoever uses a pool without the learner gets what the spaces say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.pools.direct import DirectPool
from stoker.pools.spaces import ActionCodec
from stoker.types import PLAIN, HostObs, LeafSpec, StepBatch

Info = dict[str, Any]
CUT_OFF: Info = {"cut_off": True}
"""The last info of an episode that a fault cut off: its own is not known."""


class OwnActions(ActionCodec):
    """Hands actions on as they come."""

    def encode(self, actions: np.ndarray) -> np.ndarray:
        return actions.reshape(len(actions), *self.spec.shape).astype(self.spec.dtype, copy=False)


class OwnTerms:
    """What the adapters to Gymnasium and to Stable-Baselines3 have in common.

    `env` is one environment like those of the pool, for what can be read off it; it may be closed.
    """

    def __init__(self, pool: DirectPool, env: gymnasium.Env[Any, Any]) -> None:
        self.pool, self.n_envs = pool, pool.n_envs
        pool.codec = OwnActions(pool.spec.action)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def actions(self, given: Any) -> np.ndarray:
        """What a user gave for everyone, as an array [N, ...]."""
        actions = np.asarray(given)
        if actions.ndim == 0:
            raise TypeError(
                f"Actions are {given!r}; give {self.n_envs} of them, one for each environment."
            )
        expected = (self.n_envs, *self.pool.spec.action.shape)
        if actions.shape != expected:
            raise ValueError(
                f"Actions have shape {actions.shape}; {self.n_envs} environments with the action "
                f"space {self.action_space} need {expected}."
            )
        return actions

    def observations(self, leaves: HostObs, copy: bool = True) -> Any:
        """Rows [n, ...] of the pool as the space has them; without `copy`, views where possible."""
        found = {
            leaf: _in_dtype(values, self.pool.spec.observation[leaf], self._space(leaf), copy)
            for leaf, values in leaves.items()
        }
        return found if isinstance(self.observation_space, spaces.Dict) else found[PLAIN]

    def observation(self, leaves: HostObs, row: int) -> Any:
        """One row, as one environment would return it."""
        one = self.observations({leaf: values[row : row + 1] for leaf, values in leaves.items()})
        if not isinstance(one, dict):
            return _scalar(one[0], self.observation_space)
        return {leaf: _scalar(values[0], self._space(leaf)) for leaf, values in one.items()}

    def _space(self, leaf: str) -> spaces.Space[Any]:
        space = self.observation_space
        return space[leaf] if isinstance(space, spaces.Dict) else space

    def infos(self, batch: StepBatch) -> Iterator[tuple[int, Info, Info | None]]:
        """Of each row with something to tell: its environment, its info, and where an episode
        ended that one's last. Call it before anything else is asked of the pool.
        """
        ended = (batch.terminated | batch.truncated).tolist()
        rows = zip(batch.env_ids.tolist(), self.pool.last_infos, ended, strict=True)
        for env_id, told, has_ended in rows:
            if has_ended:
                final = CUT_OFF if told.final is None else told.final
                yield env_id, dict(told.info), dict(final)
            elif told.info:
                yield env_id, dict(told.info), None


def _in_dtype(
    values: np.ndarray, kind: LeafSpec, space: spaces.Space[Any], copy: bool
) -> np.ndarray:
    if kind.start:
        values, copy = values + kind.start, False
    return values.astype(space.dtype, copy=copy)


def _scalar(value: Any, space: spaces.Space[Any]) -> Any:
    """A category as a plain number."""
    return int(value) if isinstance(space, spaces.Discrete) else value
