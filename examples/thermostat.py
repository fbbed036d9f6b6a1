"""An environment of one's own: keep a leaky room at 20 degrees.

Train on it from the project's root:
    stoker train --env examples.thermostat:Thermostat --timesteps 30k
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Thermostat(gymnasium.Env[np.ndarray, int]):
    """Heat, cool or wait; the reward is 1 a step within half a degree, less the further off."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)  # room, outside
    action_space = spaces.Discrete(3)  # cool, wait, heat
    metric_names = ("comfort",)  # what info["metrics"] holds; logged as env/comfort

    def __init__(self, steps: int = 100) -> None:
        self.steps = steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.room, self.outside = self.np_random.uniform([5.0, -10.0], [30.0, 35.0])
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.room += 0.05 * (self.outside - self.room) + 2.0 * (action - 1)
        off = abs(self.room - 20.0)
        reward = float(np.exp(-max(0.0, off - 0.5)))
        metrics = {"comfort": float(off < 1.0)}
        return self._observe(), reward, False, self.t >= self.steps, {"metrics": metrics}

    def _observe(self) -> np.ndarray:
        return np.array([self.room, self.outside], np.float32)
