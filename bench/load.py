"""Environments with a set cost, and what environments give with nobody to answer to."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


class Busy(gymnasium.Env[Any, Any]):
    """Keeps a core busy for `seconds` a step (of CPU time, so that load does not change it)."""

    observation_space = spaces.Box(-1, 1, (42,), np.float32)
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([9, 9, 9, 9])

    def __init__(self, seconds: float = 1e-3) -> None:
        self.seconds = seconds
        self.obs = np.linspace(-1, 1, 42, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return self.obs, 0.0, False, False, {}


class Straggler(Busy):
    """Steps in 0.1 ms; the action 1 takes `pause` seconds more, asleep."""

    action_space = spaces.Discrete(2)

    def __init__(self, pause: float = 5.0) -> None:
        super().__init__(1e-4)
        self.pause = pause

    def step(self, action: Any) -> Any:
        if action == 1:
            time.sleep(self.pause)
        return super().step(action)


def alone(make: MakeEnv, cores: int, seconds: float = 2.0) -> float:
    """Steps a second of one environment a core, without a pool."""
    context = multiprocessing.get_context("forkserver")
    with context.Pool(cores) as pool:
        return sum(pool.starmap(_step_for, [(make, seconds)] * cores, chunksize=1))


def _step_for(make: MakeEnv, seconds: float) -> float:
    env = make()
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(20)]
    steps, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(actions)
    return steps / took
