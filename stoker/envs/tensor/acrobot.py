"""Acrobot-v1 as tensors: the same rules as Gymnasium's, step for step."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.types import Rng, TensorState, TensorStep

_GRAVITY, _STEP_S = 9.8, 0.2
_FASTEST_UPPER, _FASTEST_LOWER = 4 * math.pi, 9 * math.pi


class Acrobot:
    """Two links that hang from a joint, with a motor between them; over when the end is up."""

    observation_space = spaces.Box(
        -np.array([1, 1, 1, 1, _FASTEST_UPPER, _FASTEST_LOWER], np.float32),
        np.array([1, 1, 1, 1, _FASTEST_UPPER, _FASTEST_LOWER], np.float32),
    )
    action_space = spaces.Discrete(3)

    def __init__(self, max_episode_steps: int = 500) -> None:
        self._longest = max_episode_steps

    def initial(self, n: int, rng: Rng) -> TensorState:
        """Nearly hanging down, nearly at rest."""
        motion = rng.uniform(4) * 0.2 - 0.1
        return {"motion": motion, "age": torch.zeros_like(motion[:, 0], dtype=torch.int64)}

    def observe(self, state: TensorState) -> Tensor:
        """Cosine and sine of the upper link's angle and of the lower one's, and both speeds."""
        upper, lower, upper_speed, lower_speed = state["motion"].unbind(1)
        return torch.stack(
            (
                torch.cos(upper),
                torch.sin(upper),
                torch.cos(lower),
                torch.sin(lower),
                upper_speed,
                lower_speed,
            ),
            1,
        )

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """The method of Runge and Kutta, of fourth order, as Gymnasium has it."""
        before, torque = state["motion"], action - 1
        slope_1 = _slope(before, torque)
        slope_2 = _slope(before + _STEP_S / 2 * slope_1, torque)
        slope_3 = _slope(before + _STEP_S / 2 * slope_2, torque)
        slope_4 = _slope(before + _STEP_S * slope_3, torque)
        after = before + _STEP_S / 6 * (slope_1 + 2 * slope_2 + 2 * slope_3 + slope_4)
        upper, lower = _wrapped(after[:, 0]), _wrapped(after[:, 1])
        upper_speed = after[:, 2].clamp(-_FASTEST_UPPER, _FASTEST_UPPER)
        lower_speed = after[:, 3].clamp(-_FASTEST_LOWER, _FASTEST_LOWER)
        motion = torch.stack((upper, lower, upper_speed, lower_speed), 1)
        up = -torch.cos(upper) - torch.cos(upper + lower) > 1
        age = state["age"] + 1
        return TensorStep({"motion": motion, "age": age}, up.float() - 1, up, age >= self._longest)


def _slope(motion: Tensor, torque: Tensor) -> Tensor:
    """How fast `motion` [n, 4] changes, by Sutton and Barto's book.

    Both links have length, mass and moment of inertia 1, and their centres halfway.
    """
    upper, lower, upper_speed, lower_speed = motion.unbind(1)
    cosine, sine = torch.cos(lower), torch.sin(lower)
    whole_inertia, lower_inertia = 3.5 + cosine, 1.25 + 0.5 * cosine
    lower_pull = 0.5 * _GRAVITY * torch.sin(upper + lower)
    pull = (
        1.5 * _GRAVITY * torch.sin(upper)
        + lower_pull
        - (0.5 * lower_speed + upper_speed) * lower_speed * sine
    )
    share = lower_inertia / whole_inertia
    lower_bending = (torque + share * pull - 0.5 * upper_speed.square() * sine - lower_pull) / (
        1.25 - lower_inertia * share
    )
    upper_bending = -(lower_inertia * lower_bending + pull) / whole_inertia
    return torch.stack((upper_speed, lower_speed, upper_bending, lower_bending), 1)


def _wrapped(angle: Tensor) -> Tensor:
    """The same direction from -pi to pi; an angle that is there already keeps its bits."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))
