"""MountainCar-v0 and MountainCarContinuous-v0 as tensors: Gymnasium's rules, step for step."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.types import Rng, TensorState, TensorStep

_LEFT_END, _RIGHT_END, _FASTEST = -1.2, 0.6, 0.07
_GRAVITY = 0.0025


class _Car:
    """A car in a valley, too weak for the slope: it has to swing; over when it is at the goal."""

    observation_space = spaces.Box(
        np.array([_LEFT_END, -_FASTEST], np.float32), np.array([_RIGHT_END, _FASTEST], np.float32)
    )

    def __init__(self, max_episode_steps: int) -> None:
        self._longest = max_episode_steps

    def initial(self, n: int, rng: Rng) -> TensorState:
        """Near the bottom, at rest."""
        place = rng.uniform() * 0.2 - 0.6
        motion = torch.stack((place, torch.zeros_like(place)), 1)
        return {"motion": motion, "age": torch.zeros_like(place, dtype=torch.int64)}

    def observe(self, state: TensorState) -> Tensor:
        """Place and speed."""
        return state["motion"]


class MountainCar(_Car):
    """Drives to the left, not at all or to the right, and pays for every step."""

    action_space = spaces.Discrete(3)

    def __init__(self, max_episode_steps: int = 200) -> None:
        super().__init__(max_episode_steps)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """Every step costs 1, the one that arrives too."""
        motion = _driven(state["motion"], 0.001 * (action - 1))
        age, cost = state["age"] + 1, torch.ones_like(motion[:, 0])
        return TensorStep(
            {"motion": motion, "age": age}, -cost, _beyond(0.5, motion), age >= self._longest
        )


class MountainCarContinuous(_Car):
    """Drives as hard as it likes, pays for that and is paid for arriving."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, max_episode_steps: int = 999) -> None:
        super().__init__(max_episode_steps)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """An action beyond the space drives no harder but costs more, as Gymnasium has it."""
        drive = action[:, 0]
        motion = _driven(state["motion"], 0.0015 * drive.clamp(-1, 1))
        age, arrived = state["age"] + 1, _beyond(0.45, motion)
        reward = 100 * arrived.float() - 0.1 * drive.square()
        return TensorStep({"motion": motion, "age": age}, reward, arrived, age >= self._longest)


def _driven(motion: Tensor, push: Tensor) -> Tensor:
    """Where the car is and how fast after a step; the left end stops it."""
    place, speed = motion.unbind(1)
    speed = (speed + (push - _GRAVITY * torch.cos(3 * place))).clamp(-_FASTEST, _FASTEST)
    place = place + speed
    speed = torch.where(place <= _LEFT_END, speed.clamp(min=0), speed)
    return torch.stack((place.clamp(_LEFT_END, _RIGHT_END), speed), 1)


def _beyond(goal: float, motion: Tensor) -> Tensor:
    """Whether the car is there, and does not roll back; bool [n]."""
    return (motion[:, 0] >= goal) & (motion[:, 1] >= 0)
