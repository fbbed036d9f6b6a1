"""The ceiling of a training: its environments alone, making such steps as its policy makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.load import Busy, Episode, _again
from bench.overlap import _played
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


def test_what_a_policy_played_ends_where_it_ended() -> None:
    env = EnvFactory("CartPole-v1")
    parts = build(resolve({"env": env.name, "n_envs": 2, "device": "cpu"}, on_gpu=False), env)
    episodes = _played(parts, env)
    parts.close()
    assert len({episode.seed for episode in episodes}) == len(episodes) > 1
    alone = env()
    for episode in episodes:
        alone.reset(seed=episode.seed)
        ends = [any(alone.step(action)[2:4]) for action in episode.actions]
        assert ends == [False] * (len(ends) - 1) + [True]
