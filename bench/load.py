"""Environments with a set cost, and what environments give with nobody to answer to."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
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


class Alone:
    """One environment a core, without a pool: what there is to reach.

    Its processes stay, so that it can be asked right after what it is compared with: a machine that
    has idled for a moment is faster than one that works.
    """

    def __init__(self, make: MakeEnv, cores: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self._ends, self._processes = [], []
        for number in range(cores):
            ours, theirs = context.Pipe()
            process = context.Process(target=_step_on, args=(theirs, make, number), daemon=True)
            process.start()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def __call__(self, seconds: float = 2.0) -> float:
        """Steps a second of all."""
        for end in self._ends:
            end.send(seconds)
        return sum(end.recv() for end in self._ends)

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send(None)
            process.join()

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _step_on(end: Connection, make: MakeEnv, seed: int) -> None:
    env = make()
    env.reset(seed=seed)
    env.action_space.seed(seed)
    actions = itertools.cycle([env.action_space.sample() for _ in range(1000)])
    end.send("ready")
    while (seconds := end.recv()) is not None:
        steps, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            for action in itertools.islice(actions, 20):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            steps += 20
        end.send(steps / took)
