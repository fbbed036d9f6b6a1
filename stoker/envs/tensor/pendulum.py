"""Pendulum-v1 as tensors: the same rules as Gymnasium's, step for step."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.types import Rng, TensorState, TensorStep

_GRAVITY, _STEP_S = 10.0, 0.05
_FASTEST, _STRONGEST = 8.0, 2.0


class Pendulum:
    """A pendulum to be held upright by a motor too weak to lift it; only time ends it."""

    observation_space = spaces.Box(
        -np.array([1, 1, _FASTEST], np.float32), np.array([1, 1, _FASTEST], np.float32)
    )
    action_space = spaces.Box(-_STRONGEST, _STRONGEST, (1,), np.float32)

    def __init__(self, max_episode_steps: int = 200) -> None:
        self._longest = max_episode_steps

    def initial(self, n: int, rng: Rng) -> TensorState:
        """At any angle, turning slowly."""
        angle, speed = (rng.uniform(2) * 2 - 1).unbind(1)
        motion = torch.stack((math.pi * angle, speed), 1)
        return {"motion": motion, "age": torch.zeros_like(angle, dtype=torch.int64)}

    def observe(self, state: TensorState) -> Tensor:
        """Cosine and sine of the angle, which is 0 when upright, and the speed."""
        angle, speed = state["motion"].unbind(1)
        return torch.stack((torch.cos(angle), torch.sin(angle), speed), 1)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """Pays for where the step began: for the angle, the speed and the torque."""
        angle, speed = state["motion"].unbind(1)
        torque = action[:, 0].clamp(-_STRONGEST, _STRONGEST)
        off = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = off.square() + 0.1 * speed.square() + 0.001 * torque.square()
        bending = 1.5 * _GRAVITY * torch.sin(angle) + 3 * torque
        speed = (speed + bending * _STEP_S).clamp(-_FASTEST, _FASTEST)
        motion = torch.stack((angle + speed * _STEP_S, speed), 1)
        age = state["age"] + 1
        over = torch.zeros_like(age, dtype=torch.bool)
        return TensorStep({"motion": motion, "age": age}, -cost, over, age >= self._longest)
