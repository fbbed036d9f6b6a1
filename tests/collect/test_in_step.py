"""Collection in step: the same seed gives the same bits, and a restored one goes on with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
import torch
from counting import SquaringPolicy, collected, counting_pool, in_step
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.collect.gather import Gatherer
from stoker.collect.in_step import InStepCollector
from stoker.config.schema import NetworkSettings
from stoker.monitor.phases import PhaseClock
from stoker.nn.actor_critic import ActorCritic
from stoker.pools.inline import InlinePool
from stoker.pools.spaces import describe_env
from stoker.storage.staged import StagedStorage
from stoker.types import Rollout

CPU = torch.device("cpu")
STEPS, ENVS = 60, 3


@contextmanager
def cartpole(seed: int) -> Iterator[InStepCollector]:
    trial = gymnasium.make("CartPole-v1")
    spec = describe_env("CartPole-v1", trial, {})
    trial.close()
    torch.manual_seed(0)
    policy = ActorCritic(spec, NetworkSettings(network_arch=(8,)), normalize_obs=True)
    policy.seed(seed, CPU)
    with InlinePool(lambda: gymnasium.make("CartPole-v1"), spec, ENVS) as pool:
        gatherer = Gatherer(pool, policy, PhaseClock(), seed, CPU)
        yield InStepCollector(gatherer, StagedStorage(spec, STEPS, ENVS, CPU))


def collect(collector: InStepCollector) -> Rollout:
    """A rollout of one's own: the storage is written over by the next."""
    rollout = pytree.tree_map_only(Tensor, torch.clone, collected(collector))
    collector.publish()
    return rollout


def same(first: Rollout, second: Rollout) -> bool:
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if a is not None)


def frozen(collector: InStepCollector) -> dict[str, np.ndarray]:
    """The state as a checkpoint would keep it."""
    return {name: value.copy() for name, value in collector.state().items()}


def test_the_same_seed_gives_the_same_bits() -> None:
    with cartpole(7) as first, cartpole(7) as second, cartpole(8) as other:
        for version in range(2):
            rollout = collect(first)
            assert (rollout.policy_version == version).all()
            assert same(rollout, collect(second))
            assert not same(rollout, collect(other))
        assert first.metrics() == second.metrics()
        assert first.gatherer.episodes.ended > 0


def test_a_restored_collector_goes_on_with_the_same_bits() -> None:
    with cartpole(7) as first, cartpole(7) as second:
        collect(first)
        state = frozen(first)
        collect(second)  # restoring must undo whatever was done since, the noise drawn included
        collect(second)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert second.restore(state).tolist() == []
        for _ in range(2):
            mine, theirs = collect(first), collect(second)
            assert same(mine, theirs._replace(policy_version=mine.policy_version))
        assert first.metrics() == second.metrics()
        for name, value in first.state().items():
            np.testing.assert_array_equal(second.state()[name], value, name)


def test_episodes_too_long_to_bring_back_begin_anew_with_a_warning() -> None:
    with cartpole(7) as first, cartpole(7) as second:
        collect(first)
        state = frozen(first)
        assert state["running_length"][1] > 0
        state["length"][1] = -1
        with pytest.warns(UserWarning, match="1 of 3 environments"):
            assert second.restore(state).tolist() == [1]
        assert second.gatherer.episodes.running_length.tolist() == [
            state["running_length"][0],
            0,
            state["running_length"][2],
        ]
        assert second.state()["episode"][1] == state["episode"][1] + 1
        # The state of the restored run brings back what it says, the new episode included.
        again = frozen(second)
        with cartpole(7) as third, warnings.catch_warnings():
            warnings.simplefilter("error")
            third.restore(again)
            mine, theirs = collect(second), collect(third)
            assert same(mine, theirs._replace(policy_version=mine.policy_version))


def test_a_rollout_is_judged_in_step_by_the_policy_that_acted() -> None:
    with cartpole(7) as collector:
        for version in range(3):
            storage = collector.collect()
            assert storage.version == collector.version == version
            rollout = storage.judged_by(collector.gatherer.policy, collector.version)
            assert torch.equal(rollout.log_prob, rollout.behaviour_log_prob)
            assert collector.steps == STEPS * ENVS
            assert collector.late == 0
            collector.publish()


def counting(*kinds: tuple[int, str], steps: int) -> InStepCollector:
    return in_step(counting_pool(*kinds), SquaringPolicy(), steps)


def test_an_environment_that_does_not_come_back_the_same_is_warned_of() -> None:
    """StepCounter's observation tells how often it was reset, whatever the seed."""
    collector = counting((3, "truncated"), steps=4)
    collector.collect()
    state = frozen(collector)
    with pytest.warns(UserWarning, match="not deterministic"):
        collector.restore(state)
    assert collector.gatherer.episodes.running_length.tolist() == [
        1
    ]  # it did come back to its first step


def test_an_environment_whose_replay_ends_early_begins_anew() -> None:
    collector = counting((3, "truncated"), steps=2)
    collector.collect()
    state = frozen(collector)
    shorter = counting((1, "truncated"), steps=2)
    with pytest.warns(UserWarning, match="1 of 1"):
        shorter.restore(state)
    assert shorter.gatherer.episodes.running_length.tolist() == [0]
    assert shorter.state()["length"].tolist() == [0]
    assert shorter.state()["episode"].tolist() == [1]


def test_metrics_are_means_since_the_last_call_of_what_was_reported() -> None:
    """StepCounter reports twice its step's number at odd steps: 2, 6, then 10."""
    collector = counting((100, "truncated"), steps=4)
    assert collector.metrics() == {}
    collector.collect()
    assert collector.metrics() == {"env/double": 4.0}
    assert collector.metrics() == {}
    collector.collect()
    assert collector.metrics() == {"env/double": 12.0}


def test_episode_metrics_come_with_them() -> None:
    collector = counting((2, "truncated"), (4, "terminated"), steps=4)
    collector.collect()
    metrics = collector.metrics()
    assert metrics["rollout/ep_rew_mean"] == pytest.approx((3 + 3 + 10) / 3)
    assert metrics["rollout/ep_len_mean"] == pytest.approx((2 + 2 + 4) / 3)


def test_the_phases_of_collecting_are_timed() -> None:
    clock = PhaseClock()
    in_step(counting_pool((2, "truncated")), SquaringPolicy(), 4, clock).collect()
    assert set(clock.total) == {"inference", "env", "store"}
