"""Environments for the adapters. Workers import this file: no torch, no pytest."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Diary(gymnasium.Env[Any, Any]):
    """Random walks that end at random, and tell in their infos what was asked of them."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space: Any = spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "age": spaces.Discrete(40, start=-3),
            "view": spaces.Box(0, 255, (2, 2, 3), np.uint8),
        }
    )
    action_space: Any = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def __init__(self, name: str = "diary", render_mode: str | None = None) -> None:
        self.name, self.render_mode, self.mood = name, render_mode, "calm"
        self.place, self.age = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.age = self.np_random.integers(-8, 8, 2).astype(float), 0
        return self._look(), {"seed": -1 if seed is None else seed, "options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, self.age = self.place + np.round(action, 1), self.age + 1
        info: dict[str, Any] = {"age": self.age, "deep": {"name": self.name}}
        if self.age % 3 == 0:
            info["walk"] = self.place.copy()
        terminated = bool(self.np_random.random() < 0.2)
        truncated = self.age == 6 and not terminated
        return self._look(), float(self.age), terminated, truncated, info

    def _look(self) -> dict[str, Any]:
        view = np.full((2, 2, 3), self.age, np.uint8)
        return {"place": np.float32(self.place).astype(float), "age": self.age - 3, "view": view}

    def render(self) -> Any:
        return np.full((4, 4, 3), self.age, np.uint8)

    def greet(self, whom: str, loudly: bool = False) -> str:
        return f"{self.name} greets {whom}{'!' if loudly else ''}"


class Plain(Diary):
    """The same with one number to see."""

    observation_space = spaces.Discrete(40, start=-3)

    def _look(self) -> Any:
        return self.age - 3


class Breaks(Diary):
    """Raises at its second step."""

    def step(self, action: Any) -> Any:
        if self.age == 1:
            raise ValueError("the axle broke")
        return super().step(action)


def named_diary(name: str) -> Any:
    return lambda: Diary(name)
