"""Environments that fail when told to. Workers import this file: no torch, no pytest."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.errors import EpisodeCutError
from stoker.pools.spaces import describe_env
from stoker.types import EnvSpec

WELL, RAISE, DIE, KILL, HANG, HOLD, NAN, INFINITE, SHAPE, DTYPE, FAR, INFO, NAP, RESET = range(14)


class Faulty(gymnasium.Env[Any, Any]):
    """Shows (number drawn at reset, step); the action says what goes wrong."""

    observation_space: Any = spaces.Box(-1.0, 1000.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(14)

    def __init__(self, length: int = 1000) -> None:
        self.length, self.broken_reset = length, ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.broken_reset == "raise":
            raise OSError("door jammed")
        if self.broken_reset == "hang":
            time.sleep(1000)
        self.drawn, self.t = float(self.np_random.integers(1000)), 0
        return self.look(), {}

    def look(self) -> Any:
        return np.array([self.drawn, self.t], np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, reward, info = self.look(), float(self.t), {}
        over = self.t >= self.length
        match int(action):
            case 1:
                raise RuntimeError("the reactor is offline")
            case 2:
                os._exit(7)
            case 3:
                os.kill(os.getpid(), signal.SIGKILL)
            case 4:
                time.sleep(1000)
            case 5:
                while True:  # with the GIL held
                    ctypes.PyDLL(None).sleep(1000)
            case 6:
                obs[0] = np.nan
            case 7:
                reward = np.inf
            case 8:
                obs = np.zeros(3, np.float32)
            case 9:
                obs = obs.astype(complex)
            case 10:
                obs[1] = -2.0
            case 11:
                return obs, reward, over, False, "all is well"
            case 12:
                time.sleep(1.0)
            case 13:
                self.broken_reset, over = "raise", True
        return obs, reward, over, False, info


class Interrupts(Faulty):
    """Presses Ctrl-C when it is closed in a worker, and then takes its time."""

    def close(self) -> None:
        press_ctrl_c()


def press_ctrl_c() -> None:
    trainer = multiprocessing.parent_process()
    if trainer is not None and trainer.pid is not None:
        os.kill(trainer.pid, signal.SIGINT)
        time.sleep(1000)


class Orphan(Faulty):
    """Fails as soon as the trainer is gone."""

    def step(self, action: Any) -> Any:
        self.wait_until_alone()
        raise OSError("nobody is there")

    def wait_until_alone(self) -> None:
        trainer = multiprocessing.parent_process()
        assert trainer is not None
        trainer.join()


class AsyncOrphan(Orphan):
    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.to_thread(self.wait_until_alone)
        raise OSError("nobody is there")


class StuckReset(Faulty):
    """The action RESET ends the episode, and the next reset hangs."""

    def step(self, action: Any) -> Any:
        if action == RESET:
            self.broken_reset = "hang"
            return self.look(), 0.0, True, False, {}
        return super().step(action)


class Threads(Faulty):
    """Shows whether it is stepped by the main thread."""

    def look(self) -> Any:
        main = threading.current_thread() is threading.main_thread()
        return np.array([main, self.t], np.float32)


class Chatty(Faulty):
    def step(self, action: Any) -> Any:
        print("a word from the environment")
        return super().step(action)


class NeedsMain(Faulty):
    def reset(self, **options: Any) -> Any:
        main: Any = sys.modules["__main__"]
        self.settings = main.SETTINGS_OF_THE_SCRIPT
        return super().reset(**options)


class Training(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that fails at certain steps of its own life."""

    def __init__(self, raise_at: int = -1, sleep_at: int = -1) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.life, self.raise_at, self.sleep_at = 0, raise_at, sleep_at

    def step(self, action: Any) -> Any:
        self.life += 1
        if self.life == self.raise_at:
            raise RuntimeError("the reactor is offline")
        if self.life == self.sleep_at:
            time.sleep(1000)
        return super().step(action)


class Interrupted(Training):
    """CartPole that presses Ctrl-C when it is closed in a worker."""

    def close(self) -> None:
        press_ctrl_c()
        super().close()


class Unsure(Faulty):
    """Cannot tell what came of some actions."""

    def step(self, action: Any) -> Any:
        if action == RAISE:
            raise EpisodeCutError("the answer got lost.")
        return super().step(action)


class NotANumber(Faulty):
    """Every episode has two steps; NaN is the reward, or what is seen, where `spot` says."""

    def __init__(self, spot: str) -> None:
        super().__init__(length=2)
        self.spot, self.resets = spot, 0

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        self.resets += 1
        return (obs * np.nan if (self.spot, self.resets) == ("first", 2) else obs), info

    def step(self, action: Any) -> Any:
        obs, reward, over, truncated, info = super().step(action)
        if over and self.spot == "last":
            obs = obs * np.nan
        if over and self.spot == "reward":
            reward = np.nan
        return obs, reward, over, truncated, info


def spec_of(env: gymnasium.Env[Any, Any]) -> EnvSpec:
    return describe_env("trial", env, {})


class Patient(Faulty):
    """Has a method that takes its time."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class ClosesSlowly(Faulty):
    """Takes a moment to close, and leaves a file in a folder when it has."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def close(self) -> None:
        time.sleep(0.3)
        (Path(self.folder) / str(os.getpid())).touch()
