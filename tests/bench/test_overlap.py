"""The ceiling of a training: its environments alone, making such steps as its policy makes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from bench import beside
from bench.beside import Remembering, train_beside
from bench.load import Alone, Busy, Episode, _again
from stoker.collect.in_step import InStepCollector
from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.train.build import build


class Witness(Busy):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.asked: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.asked.append(("reset", seed))
        return super().reset()

    def step(self, action: Any) -> Any:
        self.asked.append(action.tolist())
        return super().step(action)


def test_episodes_are_made_again_in_turn() -> None:
    env, short, long = Witness(), np.full((1, 4), 3), np.arange(8).reshape(2, 4)
    steps = _again(env, [Episode(5, short), Episode(6, long)])
    assert [next(steps) for _ in range(3)] == [1, 2, 1]
    first = [("reset", 5), [3, 3, 3, 3]]
    assert env.asked == [*first, ("reset", 6), [0, 1, 2, 3], [4, 5, 6, 7], *first]


def test_episodes_of_a_training_end_where_they_ended() -> None:
    env = EnvFactory("CartPole-v1")
    sizes = {"n_envs": 3, "n_steps": 128, "batch_size": 128}
    with closing(
        build(resolve({"env": env.name, **sizes, "device": "cpu"}, on_gpu=False), env)
    ) as parts:
        assert isinstance(parts.collector, InStepCollector)
        journal = Remembering(parts, most=5)
        parts.collector.gatherer._journal = journal
        parts.collector.collect()
    assert len({episode.seed for episode in journal.ended}) == 5
    alone = env()
    for episode in journal.ended:
        alone.reset(seed=episode.seed)
        ends = [any(alone.step(action)[2:4]) for action in episode.actions]
        assert ends == [False] * (len(ends) - 1) + [True]


def test_a_training_rests_while_its_environments_work_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beside, "_TURNS", 2)
    monkeypatch.setattr(beside, "_ALONE_S", 0.1)
    env = EnvFactory("CartPole-v1")
    sizes: dict[str, Any] = {"n_envs": 4, "n_steps": 256, "batch_size": 256, "n_epochs": 1}
    with Alone(env, 1) as alone:
        speeds = train_beside(env, alone, collect="overlap", pool="process", n_workers=1, **sizes)
    assert [speed.steps for speed in speeds] == [1024, 1024]
    for speed in speeds:
        assert min(speed.wall_s, speed.collect_s, speed.learn_s, speed.ceiling or 0.0) > 0.0
