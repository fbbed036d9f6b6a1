"""Vector environments that live on a device, for tests: tensor environments in other clothes."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from tensor_envs import Ladder
from torch import Tensor

from stoker.envs.tensor.cart_pole import CartPole
from stoker.pools.tensor import TensorPool, describe_tensor_env


class Isaac:
    """Isaac Lab's shape: observations by name, five answers, resets in the same step.

    As simulators do, it writes what is seen to the same tensors in every step. `finals` says by
    which name what ended episodes saw last is told, if at all.
    """

    def __init__(
        self, env: Any, num_envs: int, device: Any = "cpu", finals: str | None = "final_obs"
    ) -> None:
        self.num_envs, self.device, self.finals = num_envs, device, finals
        critic = spaces.Box(-1, 1, (7,))
        self.single_observation_space: Any = spaces.Dict(
            {"policy": env.observation_space, "critic": critic}
        )
        self.single_action_space = env.action_space
        self._pool = TensorPool(
            env, describe_tensor_env("inner", env), num_envs, torch.device("cpu")
        )
        self._seen: dict[str, Tensor] = {}
        self.seeds: list[int | None] = []
        self.closed = 0

    def reset(self, seed: int | None = None) -> Any:
        self.seeds.append(seed)
        self._pool.begin(seed or 0)
        self._seen = {leaf: value.clone() for leaf, value in self._pool.obs.items()}
        return self._shown(self._seen), {}

    def step(self, actions: Tensor) -> Any:
        row = self._pool.advance(actions.reshape(self.num_envs, -1))
        for leaf, value in row.obs.items():
            self._seen[leaf].copy_(value)
        over = row.terminated | row.truncated
        extras = {}
        if self.finals:
            # Of those that did not end nothing is told.
            told = {
                leaf: torch.where(over.view(-1, *[1] * (value.dim() - 1)), value, torch.nan)
                for leaf, value in row.final_obs.items()
            }
            extras[self.finals] = self._shown(told)
        return self._shown(self._seen), row.reward, row.terminated, row.truncated, extras

    def _shown(self, leaves: dict[str, Tensor]) -> Any:
        plain = leaves["obs"] if len(leaves) == 1 else leaves
        return {"policy": plain, "critic": torch.zeros(self.num_envs, 7)}

    def close(self) -> None:
        self.closed += 1


class RslRl(Isaac):
    """rsl_rl's shape: no seed, the observation alone, four answers, dones as whole numbers."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset(3)[0]

    def step(self, actions: Tensor) -> Any:
        obs, reward, terminated, truncated, extras = super().step(actions)
        dones = (terminated | truncated).long()
        return obs, reward, dones, {**extras, "time_outs": truncated}


def ladders(num_envs: int, device: str, longest: int = 11, finals: bool = True) -> Isaac:
    """As many as are asked for."""
    return Isaac(Ladder(longest), num_envs, device, "final_obs" if finals else None)


def four_poles() -> Isaac:
    """As many as it likes."""
    return Isaac(CartPole(), 4)
