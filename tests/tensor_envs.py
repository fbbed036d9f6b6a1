"""Tensor environments for tests, and an ordinary one that does the same."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.types import Rng, TensorState, TensorStep

SEEN = spaces.Box(-1000, 1000, (3,), np.float32)
TOP, LONGEST = 4, 11


class Ladder:
    """Up or down a rung a step; over at the top, or after a while. Nothing is random.

    Reward is the rung, so whoever climbs earns more. All numbers are whole or halves: exact.
    """

    observation_space = SEEN
    action_space: spaces.Space[Any] = spaces.Discrete(2)
    metric_names = ("rung",)

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest

    def initial(self, n: int, rng: Rng) -> TensorState:
        rung = rng.uniform().long() * 0
        return {"rung": rung, "age": rung}

    def observe(self, state: TensorState) -> Tensor:
        rung, age = state["rung"].float(), state["age"].float()
        return torch.stack((rung, rung * 0.5 - age, age), 1)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        rung, age = state["rung"] + 2 * action - 1, state["age"] + 1
        climbed = {"rung": rung, "age": age}
        return TensorStep(
            climbed, rung.float(), rung >= TOP, age >= self.longest, {"rung": rung.float()}
        )


class HostLadder(gymnasium.Env[Any, Any]):
    """The same, one at a time."""

    observation_space = SEEN
    action_space = Ladder.action_space
    metric_names = Ladder.metric_names

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.rung = self.age = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.rung += 2 * int(action) - 1
        self.age += 1
        over = self.rung >= TOP
        info = {"metrics": {"rung": float(self.rung)}}
        return self._look(), float(self.rung), over, self.age >= self.longest, info

    def _look(self) -> np.ndarray:
        return np.array([self.rung, self.rung * 0.5 - self.age, self.age], np.float32)


class Dice:
    """Shows two random numbers and an action; a one ends it. `space` is what it takes."""

    observation_space = spaces.Dict(
        {
            "dice": spaces.Box(0, 1, (2,), np.float32),
            "said": spaces.Box(-10, 10, (2,), np.float32),
        }
    )

    def __init__(self, space: spaces.Space[Any] | None = None) -> None:
        self.action_space = space or spaces.Box(-2, 4, (2,), np.float32)

    def initial(self, n: int, rng: Rng) -> TensorState:
        dice = rng.uniform(2)
        return {"dice": dice, "said": torch.zeros_like(dice)}

    def observe(self, state: TensorState) -> dict[str, Tensor]:
        return dict(state)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        dice, luck = rng.uniform(2), rng.uniform()
        said = torch.zeros_like(dice) + action.reshape(len(dice), -1)
        return TensorStep({"dice": dice, "said": said}, luck, luck < 1 / 6, luck < 1 / 5)
