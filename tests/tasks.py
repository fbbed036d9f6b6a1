"""Small tasks that a right PPO solves in seconds and a wrong one does not, and odd environments.

Workers import this file, and must not wait for torch, which test files import.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.errors import EpisodeCutError

LENGTH = 16  # steps of an episode: the most reward there is


class Task(gymnasium.Env[Any, Any]):
    """Every step shows something new and pays 1 for the right answer. Ends by truncation."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.show(), self.info()

    def step(self, action: Any) -> Any:
        reward = float(self.right(action))
        self.t += 1
        return self.show(), reward, False, self.t >= LENGTH, self.info()

    def show(self) -> Any:
        """The next observation."""
        raise AssertionError

    def right(self, action: Any) -> bool | float:
        """What the action earns, from 0 to 1."""
        raise AssertionError

    def info(self) -> dict[str, Any]:
        return {}


class MatchPair(Task):
    """MultiDiscrete [3, 4]: say both numbers that are shown; half a point each."""

    observation_space = spaces.Box(0, 1, (7,), np.float32)
    action_space = spaces.MultiDiscrete([3, 4])

    def show(self) -> Any:
        self.pair = (int(self.np_random.integers(3)), int(self.np_random.integers(4)))
        obs = np.zeros(7, np.float32)
        obs[[self.pair[0], 3 + self.pair[1]]] = 1
        return obs

    def right(self, action: Any) -> float:
        return 0.5 * (action[0] == self.pair[0]) + 0.5 * (action[1] == self.pair[1])


class Scalar(Task):
    """A single number without a shape: is it positive?"""

    observation_space = spaces.Box(-1.0, 1.0, (), np.float32)
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        self.now = self.np_random.uniform(-1.0, 1.0)
        return np.array(self.now, np.float32)

    def right(self, action: Any) -> bool:
        return bool(action == (self.now > 0))


class MatchBits(Task):
    """MultiBinary 3: repeat the bits that are shown; a third of a point each."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.MultiBinary(3)

    def show(self) -> Any:
        self.bits = self.np_random.integers(2, size=3)
        return self.bits.astype(np.float32)

    def right(self, action: Any) -> float:
        return float((action == self.bits).mean())


class EchoDict(Task):
    """Dict of a category, a vector and an image: say what each shows; a third of a point each."""

    observation_space = spaces.Dict(
        {
            "category": spaces.Discrete(2, start=5),
            "vector": spaces.Box(-1, 1, (2,), np.float32),
            "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
        }
    )
    action_space = spaces.MultiDiscrete([2, 2, 2])

    def show(self) -> Any:
        self.answer = self.np_random.integers(2, size=3)
        category, sign, bright = self.answer
        vector = np.array([0.8 if sign else -0.8, self.np_random.uniform(-1, 1)], np.float32)
        image = np.full((8, 8, 1), 200 if bright else 20, np.uint8)
        return {"category": 5 + category, "vector": vector, "image": image}

    def right(self, action: Any) -> float:
        return float((action == self.answer).mean())


class Masked(Task):
    """Six doors, most of them locked; a locked door breaks the environment, the highest pays."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(6)

    def show(self) -> Any:
        self.open = self.np_random.random(6) < 0.4
        self.open[self.np_random.integers(6)] = True
        return np.zeros(1, np.float32)  # only the mask tells

    def right(self, action: Any) -> bool:
        if not self.open[action]:
            raise RuntimeError(f"door {action} is locked")
        return bool(action == np.flatnonzero(self.open).max())

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.open}


class Quadrant(Task):
    """Image: say in which quarter the bright square stands."""

    observation_space = spaces.Box(0, 255, (12, 12, 1), np.uint8)
    action_space = spaces.Discrete(4)

    def show(self) -> Any:
        self.answer = int(self.np_random.integers(4))
        image = self.np_random.integers(60, size=(12, 12, 1)).astype(np.uint8)
        row, column = self.np_random.integers(3, size=2) + 6 * np.array(divmod(self.answer, 2))
        image[row : row + 3, column : column + 3] = 250
        return image

    def right(self, action: Any) -> bool:
        return bool(action == self.answer)


class Count(gymnasium.Env[Any, Any]):
    """Observes how many steps it has made; truncates at `length`; pays `reward` a step."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5, reward: float = 1.0) -> None:
        self.length, self.reward = length, reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        obs = np.full(1, self.t, np.float32)
        return obs, self.reward, False, self.t >= self.length, {}


class Forgetful(Count):
    """Not deterministic: its observation comes from the clock of the process, not from the seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = super().reset(seed=seed)
        return np.random.default_rng().random(1, np.float32), info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return (np.random.default_rng().random(1, np.float32), *rest)


class Slow(Count):
    """Takes ten seconds a step once a file called `slow` lies in the working folder."""

    def step(self, action: Any) -> Any:
        if Path("slow").exists():
            time.sleep(10)
        return super().step(action)


class Exploding(Count):
    """Pays a reward so large that the value loss overflows, from its `after`-th step on."""

    made = 0

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.after = after

    def step(self, action: Any) -> Any:
        Exploding.made += 1
        obs, reward, *rest = super().step(action)
        return (obs, 3e38 if Exploding.made > self.after else reward, *rest)


class Failing(Count):
    """Raises in its 300th episode, as long as a file called `fail` lies in the working folder."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.episodes == 300 and Path("fail").exists():
            raise RuntimeError("out of ideas")
        return super().step(action)


class Talking(Count):
    """Prints at every reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        print("hello from the environment", flush=True)
        return super().reset(seed=seed)


class Costly(gymnasium.Env[Any, Any]):
    """Nothing happens, and a step takes `cost` seconds, asleep: others hardly hold that up."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, cost: float = 0.0) -> None:
        self._cost, self._age = cost, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._age = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        if self._cost:
            time.sleep(self._cost)
        self._age += 1
        return np.zeros(4, np.float32), 0.0, False, self._age >= 100, {}


class CutAtFirst(Count):
    """Cannot tell what came of the first step of all; episodes have two steps."""

    def __init__(self) -> None:
        super().__init__(length=2)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 1:
            raise EpisodeCutError("the answer got lost.")
        return super().step(action)


class Nap(Count):
    """Steps that wait for all others of the process."""

    together = threading.Barrier(30, timeout=30)

    def __init__(self) -> None:
        super().__init__(length=3)

    def step(self, action: Any) -> Any:
        self.together.wait()
        return super().step(action)


class BreaksInWorkers(Count):
    """Its constructor works in this process and not in another."""

    def __init__(self) -> None:
        super().__init__()
        here = multiprocessing.parent_process() is None
        if threading.current_thread() is threading.main_thread() and not here:
            raise RuntimeError("no licence on this process")


class Moody(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that is out of sorts while a file is there."""

    def __init__(self, sorrow: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.sorrow = Path(sorrow)

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return (obs * np.nan if self.sorrow.exists() else obs), *rest
