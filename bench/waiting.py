"""Environments that wait, as for an answer, and do nothing else. Workers import this."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LATENCY_S = 0.05
WAITING, AWAITING = "bench.waiting:waiting", "bench.waiting:awaiting"
"""Names that every trainer can be given, of environments that wait so long."""


class Waiting(gymnasium.Env[Any, Any]):
    """Waits for `seconds` a step; the action 1 takes `long_s` more."""

    observation_space = spaces.Box(-1, 1, (8,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, seconds: float = LATENCY_S, long_s: float = 5.0) -> None:
        self.seconds, self.long_s = seconds, long_s
        self.obs = np.linspace(-1, 1, 8, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds + self.long_s * int(action == 1))
        return self.obs, 0.0, False, False, {}


class Awaiting(Waiting):
    """The same as coroutines."""

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return self.obs, {}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(self.seconds + self.long_s * int(action == 1))
        return self.obs, 0.0, False, False, {}


def waiting() -> Waiting:
    """One whose steps all take as long."""
    return Waiting(LATENCY_S, long_s=0.0)


def awaiting() -> Awaiting:
    """The same as coroutines."""
    return Awaiting(LATENCY_S, long_s=0.0)
