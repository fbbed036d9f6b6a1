"""CartPole-v1 as tensors: the same rules as Gymnasium's, step for step."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.types import Rng, TensorState, TensorStep

_GRAVITY, _FORCE, _STEP_S = 9.8, 10.0, 0.02
_POLE_MASS, _MASS, _HALF_LENGTH = 0.1, 1.1, 0.5
_FARTHEST, _STEEPEST = 2.4, 12 * 2 * math.pi / 360


class CartPole:
    """A pole on a cart that is pushed to the left or to the right; over when it has fallen."""

    observation_space = spaces.Box(
        -np.array([2 * _FARTHEST, np.inf, 2 * _STEEPEST, np.inf], np.float32),
        np.array([2 * _FARTHEST, np.inf, 2 * _STEEPEST, np.inf], np.float32),
    )
    action_space = spaces.Discrete(2)

    def __init__(self, max_episode_steps: int = 500) -> None:
        self._longest = max_episode_steps

    def initial(self, n: int, rng: Rng) -> TensorState:
        """Nearly upright, nearly at rest."""
        motion = rng.uniform(4) * 0.1 - 0.05
        return {"motion": motion, "age": torch.zeros_like(motion[:, 0], dtype=torch.int64)}

    def observe(self, state: TensorState) -> Tensor:
        """Place and speed of the cart, angle and angular speed of the pole."""
        return state["motion"]

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """Euler's method, as Gymnasium has it."""
        place, speed, angle, turning = state["motion"].unbind(1)
        force = torch.where(action == 1, _FORCE, -_FORCE)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        push = (force + _POLE_MASS * _HALF_LENGTH * turning.square() * sine) / _MASS
        bending = (_GRAVITY * sine - cosine * push) / (
            _HALF_LENGTH * (4 / 3 - _POLE_MASS * cosine.square() / _MASS)
        )
        thrust = push - _POLE_MASS * _HALF_LENGTH * bending * cosine / _MASS
        motion = torch.stack(
            (
                place + _STEP_S * speed,
                speed + _STEP_S * thrust,
                angle + _STEP_S * turning,
                turning + _STEP_S * bending,
            ),
            1,
        )
        fallen = (motion[:, 0].abs() > _FARTHEST) | (motion[:, 2].abs() > _STEEPEST)
        age = state["age"] + 1
        reward = torch.ones_like(place)
        return TensorStep({"motion": motion, "age": age}, reward, fallen, age >= self._longest)
