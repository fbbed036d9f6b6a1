"""Any environment as one to be awaited. Workers import this file: no torch, no pytest."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium


class AsCoroutines(gymnasium.Env[Any, Any]):
    """Another environment, to be awaited: others have their turn in every call."""

    def __init__(self, make_env: Any) -> None:
        self.env = make_env()
        self.observation_space, self.action_space = (
            self.env.observation_space,
            self.env.action_space,
        )
        self.metric_names = getattr(self.env, "metric_names", ())

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.step(action)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.env.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)
