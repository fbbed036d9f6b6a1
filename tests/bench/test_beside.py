"""The ceiling of a training: its environments alone, making such steps as its policy makes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from bench import beside
from bench.beside import Remembering, train_beside
from bench.load import Alone, Busy, Episode, _again
from stoker.collect.in_step import InStepCollector
from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.errors import EpisodeCutError
from stoker.train.build import build
from stoker.train.parts import Parts


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


def test_an_action_that_is_one_number_comes_as_in_a_pool() -> None:
    env = Witness()
    env.action_space = Discrete(3)
    env.step = lambda action: env.asked.append(action)  # type: ignore[method-assign]
    assert next(_again(env, [Episode(0, np.array([2, 1]))])) == 2
    assert [type(action) for action in env.asked[1:]] == [int, int]


class Wanderer(gymnasium.Env[Any, Any]):
    """Its seed and all its actions decide when an episode ends; some are cut off."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(np.array([-3, 0], np.float32), np.array([1, 5], np.float32))
    cuts = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.age = float(self.np_random.random()), 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.cuts and np.random.random() < 0.001:
            raise EpisodeCutError("lost")
        self.age += 1
        self.place = (3.7 * self.place + 1.1 * action[0] + 0.7 * action[1]) % 1.0
        over = self.age > 300 and self.place < 0.05
        return np.array([self.place, 0], np.float32), self.place, over, False, {}


class Steady(Wanderer):
    cuts = False


def test_episodes_of_an_overlapped_training_end_where_they_ended() -> None:
    sizes = {"n_envs": 7, "n_steps": 1500, "batch_size": 1500, "n_workers": 2, "seed": 5}
    how = {"pool": "process", "collect": "overlap", "device": "cpu"}
    env = EnvFactory(Wanderer)
    parts = build(resolve({"env": env.name, **sizes, **how}, on_gpu=False), env)
    with closing(parts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is cut off
        assert isinstance(parts.collector, InStepCollector)
        journal = Remembering(parts, most=8)
        parts.collector.gatherer._journal = journal
        parts.collector.collect()
    assert journal.steps > 7 * 1500 * 0.9
    assert len({episode.seed for episode in journal.ended}) == 8
    alone = Steady()
    for episode in journal.ended:
        alone.reset(seed=episode.seed)
        ends = [alone.step(action)[2] for action in episode.actions]
        assert len(ends) > 256
        assert ends == [False] * (len(ends) - 1) + [True]


def test_a_training_rests_while_its_environments_work_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beside, "_TURNS", 2)
    built: list[Parts] = []
    monkeypatch.setattr(beside, "build", lambda *given: built.append(build(*given)) or built[-1])
    moved, asked = list[bool](), list[int]()

    class Looking(Alone):
        cores = 1

        def __init__(self) -> None: ...

        def __call__(self, seconds: float = 0.0, episodes: Sequence[Episode] = ()) -> float:
            worked = built[0].pool.worked()
            time.sleep(0.3)
            moved.append(worked != built[0].pool.worked())
            asked.append(len(episodes))
            return 7.0

    sizes: dict[str, Any] = {"n_envs": 4, "n_steps": 256, "batch_size": 256, "n_epochs": 1}
    how: dict[str, Any] = {"collect": "overlap", "pool": "process", "n_workers": 1}
    began = time.perf_counter()
    speeds = train_beside(EnvFactory("CartPole-v1"), Looking(), **how, **sizes)
    took = time.perf_counter() - began
    assert moved == [False, False]
    assert asked == [4, 4]
    assert [speed.ceiling for speed in speeds] == [7.0, 7.0]
    assert 0.0 < sum(3 * speed.wall_s for speed in speeds) < took - 0.6
    assert 0.0 < sum(3 * speed.steps for speed in speeds) <= 14 * 1024


def test_nothing_is_made_again_before_an_episode_has_ended() -> None:
    sizes: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "n_epochs": 1}
    with pytest.raises(ValueError, match=r"no episode of .*Witness has ended"):
        train_beside(EnvFactory(Witness), cast(Alone, Mock(cores=1)), pool="inline", **sizes)
