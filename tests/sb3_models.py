"""Models of Stable-Baselines3, trained for a moment, and the tasks they were trained on.

Workers import no torch from here: it is imported when a model is made.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tasks
from gymnasium import spaces


class Reach(tasks.Task):
    """Box actions, each on a scale of its own: name the numbers that are shown."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(
        np.array([-2, 10, -0.1], np.float32), np.array([2, 50, 0.3], np.float32)
    )

    def show(self) -> Any:
        self.aim = self.np_random.normal(size=2)
        return self.aim

    def right(self, action: Any) -> float:
        return -float(abs(action[0] - self.aim[0]) + abs(action[2] - self.aim[1]))


class Name(tasks.Task):
    """Discrete observations: say which is shown."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(5)

    def show(self) -> Any:
        self.answer = int(self.np_random.integers(5))
        return self.answer

    def right(self, action: Any) -> bool:
        return bool(action == self.answer)


class Both(tasks.Task):
    """Dict observations without an image: say the category."""

    observation_space = spaces.Dict(
        {"way": spaces.Box(-1, 1, (2, 2), np.float32), "category": spaces.Discrete(3)}
    )
    action_space = spaces.Discrete(3)

    def show(self) -> Any:
        self.answer = int(self.np_random.integers(3))
        way = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return {"category": self.answer, "way": way}

    def right(self, action: Any) -> bool:
        return bool(action == self.answer)


PPO_SIZES: dict[str, Any] = {"n_steps": 64, "batch_size": 32, "n_epochs": 2, "learning_rate": 1e-3}
DQN_SIZES: dict[str, Any] = {"learning_starts": 32, "buffer_size": 500, "learning_rate": 0.01}


def trained(algo: str, env: Any, steps: int = 192, policy: str = "MlpPolicy", **given: Any) -> Any:
    """A model of Stable-Baselines3 after a few updates, on the CPU."""
    import stable_baselines3

    sizes = {"PPO": PPO_SIZES, "DQN": DQN_SIZES}.get(algo, {})
    kind = getattr(stable_baselines3, algo)
    return kind(policy, env, device="cpu", seed=1, **(sizes | given)).learn(steps)


def saved(model: Any, path: Path) -> Path:
    model.save(path)
    return path


def rewritten(
    source: Path, target: Path, change: Callable[[dict[str, bytes]], None], **how: Any
) -> Path:
    """A copy of a model's archive whose entries, by name, were changed."""
    with zipfile.ZipFile(source) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(target, "w", **how) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return target


def with_facts(entries: dict[str, bytes], facts: Mapping[str, Any]) -> None:
    """Say something else in the JSON; None takes an entry away."""
    data = json.loads(entries["data"]) | dict(facts)
    entries["data"] = json.dumps({k: v for k, v in data.items() if v is not None}).encode()


def with_weights(entries: dict[str, bytes], change: Callable[[dict[str, Any]], Any]) -> None:
    """Save other weights, or something else."""
    import torch

    weights = torch.load(io.BytesIO(entries["policy.pth"]), weights_only=True)
    written = io.BytesIO()
    torch.save(change(dict(weights)), written)
    entries["policy.pth"] = written.getvalue()


class Picture(tasks.Task):
    """An image large enough for a CnnPolicy."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def show(self) -> Any:
        return np.zeros((36, 36, 1), np.uint8)

    def right(self, action: Any) -> bool:
        return True


class Still(tasks.Task):
    """Shows as much as CartPole, and its like with other spaces."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (4,), np.float32)

    def show(self) -> Any:
        return self.observation_space.sample()

    def right(self, action: Any) -> bool:
        return True


class Fewer(Still):
    action_space = spaces.Discrete(3)


class Continuous(Still):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


class Four(Still):
    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)


class FromOne(Still):
    action_space = spaces.Discrete(2, start=1)


class Wider(Still):
    """Pendulum with other bounds."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Box(-3, 3, (1,), np.float32)
