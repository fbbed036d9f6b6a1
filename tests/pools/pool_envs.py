"""Environments with data one can recognise. Workers import this file: no torch, no pytest."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.config.schema import FaultSettings
from stoker.pools.inline import InlinePool
from stoker.pools.spaces import describe_env
from stoker.types import ActionSpec, EnvSpec, StepBatch


class Counter(gymnasium.Env[Any, Any]):
    """Shows (episode, step) and pays the step's number; an episode has `length` steps."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)
    metric_names: tuple[str, ...] = ()

    def __init__(self, length: int = 3, terminated: bool = True, truncated: bool = False) -> None:
        self.length, self.ends = length, (terminated, truncated)
        self.episode, self.t = -1, 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return self.look(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.t += 1
        terminated, truncated = (self.t == self.length and end for end in self.ends)
        return self.look(), float(self.t), terminated, truncated, self.info()

    def look(self) -> Any:
        return np.array([self.episode, self.t], np.float32)

    def info(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1


class DictCounter(Counter):
    """The same, as a Dict; its leaf `obs` has the name that plain observations go by."""

    observation_space = spaces.Dict(
        {"obs": Counter.observation_space, "step": spaces.Discrete(100, start=-1)}
    )

    def look(self) -> Any:
        return {"obs": super().look(), "step": np.int64(self.t - 1)}


class MaskedCounter(Counter):
    """Allows only action (episode + step) mod 3."""

    def info(self) -> dict[str, Any]:
        mask = np.zeros(3, np.int8)
        mask[(self.episode + self.t) % 3] = 1
        return {"action_mask": mask}


OBSERVATIONS: dict[str, Any] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "doubles": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "category": spaces.Discrete(5, start=2),
    "dict": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 4), np.uint8),
            "speed": spaces.Box(-1, 1, (2,), np.float32),
            "gear": spaces.Discrete(4, start=-1),
        }
    ),
    "lone leaf": spaces.Dict({"obs": spaces.Box(-1, 1, (3,), np.float32)}),
}
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(4, start=1),
    "multi discrete": spaces.MultiDiscrete([2, 3], start=[0, 5]),
    "multi binary": spaces.MultiBinary(3),
    "box": spaces.Box(-2, 6, (2,), np.float32),
}


class Wanderer(gymnasium.Env[Any, Any]):
    """Random in everything, and all of it follows from the seed and the actions."""

    metric_names = ("height", "depth")

    def __init__(self, seen: str = "vector", does: str = "discrete", masks: bool = False) -> None:
        # A copy: it is sampled from, and others may do so in other threads.
        self.observation_space = copy.deepcopy(OBSERVATIONS[seen])
        self.action_space = ACTIONS[does]
        self.masks, self.total = masks, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.total = 0.0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, type(action))
        self.total += float(np.sum(action)) + self.np_random.random()
        self.observation_space.seed(int(self.np_random.integers(2**31)) + int(100 * self.total))
        ended = self.np_random.random(2) < 0.15
        seen = self.observation_space.sample()
        return seen, self.total, bool(ended[0]), bool(ended[1]), self._info()

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"metrics": {"height": self.total}}
        if self.masks:
            width = int(getattr(self.action_space, "n", 0)) or int(sum(self.action_space.nvec))
            info["action_mask"] = self.np_random.random(width) < 0.5
            info["action_mask"][[0, -1]] = True  # a choice of each of two columns
        return info


class Reporter(Counter):
    """Shows its process and whether torch is loaded there; some actions are deadly."""

    observation_space = spaces.Box(0, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(5)
    RAISE, DIE, HANG = 1, 2, 3

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == self.RAISE:
            raise RuntimeError("the reactor is offline")
        if action == self.DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == self.HANG:
            time.sleep(60)
        return super().step(action)

    def look(self) -> Any:
        threads = os.environ.get("OMP_NUM_THREADS", "0")
        return np.array([os.getpid(), "torch" in sys.modules, threads], np.float32)


def spec_of(env: gymnasium.Env[Any, Any]) -> EnvSpec:
    """What a trial environment shows of itself."""
    return describe_env("trial", env, env.reset(seed=0)[1])


def random_actions(spec: ActionSpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Policy actions [rows, A]."""
    if spec.continuous:
        return rng.normal(size=(rows, spec.width)).astype(np.float32)
    choices = spec.nvec or (2,) * spec.width
    return rng.integers(choices, size=(rows, spec.width))


def act(*choices: int) -> np.ndarray:
    """Discrete policy actions [N, 1]."""
    return np.array(choices, np.int64)[:, None]


def copied(batch: StepBatch) -> StepBatch:
    """The batch as it is now, whatever the pool does next."""

    def copy(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: value.copy() for name, value in part.items()}
        return None if part is None else part.copy()

    return StepBatch(*map(copy, batch))


def assert_same(left: StepBatch, right: StepBatch) -> None:
    """Equal in every bit of every field."""
    for field, ours, theirs in zip(StepBatch._fields, left, right, strict=True):
        if ours is None or theirs is None:
            assert ours is theirs, field
            continue
        ours = ours if isinstance(ours, dict) else {"": ours}
        theirs = theirs if isinstance(theirs, dict) else {"": theirs}
        assert ours.keys() == theirs.keys(), field
        for leaf, array in ours.items():
            other = theirs[leaf]
            assert (array.dtype, array.shape) == (other.dtype, other.shape), (field, leaf)
            assert array.tobytes() == other.tobytes(), (field, leaf, array, other)


STRICT = FaultSettings(max_faults=0)
"""The first fault is raised."""


def pool_of(make_env: Any, n_envs: int = 1, settings: FaultSettings = STRICT) -> InlinePool:
    return InlinePool(make_env, spec_of(make_env()), n_envs, settings)
