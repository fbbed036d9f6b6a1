"""Evaluation: whole episodes, a fixed number an environment, on seeds that were not trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tasks
import torch
from gymnasium import spaces
from tensor_envs import Dice
from torch import Tensor

from stoker.envs.registry import EnvFactory
from stoker.errors import EpisodeCutError
from stoker.pools.slot import episode_seed
from stoker.pools.spaces import describe_env
from stoker.pools.tensor import describe_tensor_env
from stoker.train import evaluate as evaluation
from stoker.train.evaluate import evaluate
from stoker.types import DeviceObs, PolicyOutput

SEEN: list[int] = []


class Lasting(tasks.Count):
    """Lasts 1 step or 9 by its seed; notes the seeds it is given."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert seed is not None
        SEEN.append(seed)
        self.length = 1 if seed % 2 else 9
        return super().reset(seed=seed)


class Idle:
    """Always the first action."""

    generator = torch.Generator()

    def draw_noise(self, rows: int) -> Tensor:
        return torch.zeros(rows)

    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        return PolicyOutput(torch.zeros(len(noise), 1, dtype=torch.int64), noise)

    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor:
        return torch.zeros(len(next(iter(obs.values()))), 1, dtype=torch.int64)

    def value(self, obs: DeviceObs) -> Tensor:
        raise AssertionError("evaluation needs no values")


def evaluated(
    episodes: int, seed: int = 0, deterministic: bool = True, max_steps: int = 100
) -> Any:
    SEEN.clear()
    spec = describe_env("lasting", Lasting(), {})
    factory = EnvFactory(Lasting)
    cpu = torch.device("cpu")
    return evaluate(
        Idle(),
        factory,
        spec,
        cpu,
        episodes=episodes,
        seed=seed,
        max_steps=max_steps,
        deterministic=deterministic,
    )


@pytest.mark.parametrize("episodes", [1, 7, 10, 23])
@pytest.mark.parametrize("deterministic", [True, False])
def test_as_many_episodes_as_asked_for_each_whole(episodes: int, deterministic: bool) -> None:
    report = evaluated(episodes, deterministic=deterministic)
    assert len(report.returns) == len(report.lengths) == episodes
    assert report.returns == report.lengths  # one point a step
    assert set(report.lengths) <= {1, 9}
    assert report.unfinished == 0


def test_short_episodes_are_not_favoured() -> None:
    """First come, first counted would hear of the short ones alone."""
    report = evaluated(200)
    share_of_long = np.mean(np.array(report.lengths) == 9)
    assert 0.35 < share_of_long < 0.65


def test_the_same_seed_gives_the_same_episodes_and_none_is_trained_on() -> None:
    first = evaluated(30, seed=3)
    seeds = set(SEEN)
    assert evaluated(30, seed=3) == first
    trained_on = {episode_seed(3, env, episode) for env in range(64) for episode in range(200)}
    assert not seeds & trained_on


def test_an_episode_without_end_is_left_out_and_holds_up_nobody_else() -> None:
    report = evaluated(10, max_steps=5)
    assert 0 < report.unfinished < 10
    assert len(report.lengths) == 10 - report.unfinished
    assert set(report.lengths) == {1}


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_cut_off_is_played_again(waits: bool) -> None:
    spec = describe_env("cut", tasks.CutAtFirst(), {})
    with pytest.warns(UserWarning, match="the answer got lost"):
        report = evaluate(
            Idle(),
            EnvFactory(tasks.CutAtFirst),
            spec,
            torch.device("cpu"),
            episodes=5,
            seed=0,
            max_steps=100,
            pool="io" if waits else "inline",
        )
    assert report.lengths == [2] * 5
    assert report.unfinished == 0


def test_environments_that_wait_are_evaluated_all_at_once() -> None:
    cpu, spec = torch.device("cpu"), describe_env("nap", tasks.Nap(), {})
    factory = EnvFactory(tasks.Nap)
    report = evaluate(Idle(), factory, spec, cpu, episodes=30, seed=0, max_steps=9, pool="io")
    assert report.lengths == [3] * 30


class AlwaysCut(tasks.Count):
    """Never gets to the end of an episode."""

    def step(self, action: Any) -> Any:
        raise EpisodeCutError("nobody answers.")


def test_an_environment_that_is_always_cut_off_is_given_up() -> None:
    cpu, spec = torch.device("cpu"), describe_env("cut", AlwaysCut(), {})
    with pytest.warns(UserWarning, match="nobody answers"):
        report = evaluate(Idle(), EnvFactory(AlwaysCut), spec, cpu, episodes=3, seed=0, max_steps=9)
    assert report.returns == []
    assert report.unfinished == 3


@pytest.mark.parametrize(("episodes", "max_steps"), [(7, 100), (40, 100), (25, 4)])
def test_tensors_play_what_they_would_step_by_step(
    episodes: int, max_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode of `Dice` is as long as its random numbers make it."""
    space = spaces.MultiDiscrete([2])
    factory, cpu = EnvFactory(Dice, {"space": space}), torch.device("cpu")
    given = (Idle(), factory, describe_tensor_env("dice", Dice(space)), cpu)
    how = {"episodes": episodes, "seed": 5, "max_steps": max_steps, "pool": "tensor"}
    monkeypatch.setattr(evaluation, "_MOST_AT_ONCE", 10)
    at_once = evaluate(*given, **how)  # type: ignore[arg-type]
    monkeypatch.setattr(evaluation, "TensorPool", type(None))
    one_by_one = evaluate(*given, **how)  # type: ignore[arg-type]
    assert at_once == one_by_one
    assert len(set(at_once.lengths)) > 2
    assert (at_once.unfinished > 0) == (max_steps == 4)
