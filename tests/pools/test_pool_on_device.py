"""Vector environments that live on the device, as a pool: both forms, resets, bad answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from device_envs import Isaac, RslRl
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tensor_envs import Dice, Ladder

from stoker.envs.registry import EnvFactory, is_device_vector
from stoker.envs.tensor.cart_pole import CartPole
from stoker.errors import BadValueError, ConfigError, EnvError
from stoker.pools.tensor import TensorPool, describe_tensor_env
from stoker.pools.vector_on_device import DeviceVectorPool
from stoker.types import PLAIN, StepBatch

CPU = torch.device("cpu")


def pool_of(envs: Any, seed: int = 7) -> DeviceVectorPool:
    pool = DeviceVectorPool(envs, "test", CPU)
    pool.begin(seed)
    return pool


def climb(pool: DeviceVectorPool, *choices: int) -> StepBatch:
    return pool.step(np.array(choices)[:, None])


@pytest.mark.parametrize("name", ["final_obs", "final_observation", "terminal_observation"])
@pytest.mark.parametrize("make", [Isaac, RslRl])
def test_it_tells_what_a_tensor_pool_would(make: Any, name: str) -> None:
    tensors = TensorPool(CartPole(15), describe_tensor_env("test", CartPole()), 5, CPU)
    theirs = tensors.reset(3)
    pool = DeviceVectorPool(make(CartPole(15), 5, finals=name), "test", CPU)
    ours = pool.reset(3)
    rng, ended, cut = np.random.default_rng(0), 0, 0
    for _ in range(60):
        for field in ("reward", "terminated", "truncated", "valid"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field)), field
        assert np.array_equal(ours.obs[PLAIN], theirs.obs[PLAIN])
        assert np.array_equal(ours.final_obs[PLAIN], theirs.final_obs[PLAIN])
        assert np.array_equal(pool.seen[0][PLAIN], theirs.obs[PLAIN])
        ended, cut = ended + ours.terminated.sum(), cut + ours.truncated.sum()
        actions = rng.integers(2, size=(5, 1))
        ours, theirs = pool.step(actions), tensors.step(actions)
    assert ended
    assert cut
    assert pool.faults() == {}


def test_observations_by_name() -> None:
    tensors = TensorPool(Dice(), describe_tensor_env("test", Dice()), 3, CPU)
    pool, theirs = DeviceVectorPool(Isaac(Dice(), 3), "test", CPU), tensors.reset(7)
    assert pool.spec.observation.keys() == {"dice", "said"}
    ours = pool.reset(7)
    for leaf in ("dice", "said"):
        assert np.array_equal(ours.obs[leaf], theirs.obs[leaf])


def test_where_nothing_is_told_the_last_that_was_seen_before_stands_in() -> None:
    pool = pool_of(Isaac(Ladder(longest=3), 2, finals=None))
    climb(pool, 1, 0)
    before = climb(pool, 1, 0)
    assert pool.faults() == {}
    after = climb(pool, 1, 1)
    assert after.truncated.tolist() == [True, True]
    assert np.array_equal(after.final_obs[PLAIN], before.obs[PLAIN])
    assert after.obs[PLAIN].tolist() == [[0, 0, 0]] * 2, "the next one's first"
    with pytest.warns(UserWarning, match="does not say what truncated episodes saw last") as said:
        assert pool.faults() == {"unseen_ends": 2}
    assert pool.faults() == {"unseen_ends": 2}, "in words only once"
    assert len(said) == 1


def test_whoever_is_terminated_is_not_truncated() -> None:
    class Both(Isaac):
        def step(self, actions: torch.Tensor) -> Any:
            obs, reward, _, _, extras = super().step(actions)
            always = torch.ones(self.num_envs, dtype=torch.uint8)
            return obs, reward, always, always, extras

    batch = climb(pool_of(Both(Ladder(), 2)), 1, 1)
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True] * 2, [False] * 2)


def test_dones_without_time_outs_are_terminations() -> None:
    class Endless(RslRl):
        def step(self, actions: torch.Tensor) -> Any:
            obs, reward, dones, extras = super().step(actions)
            extras.pop("time_outs")
            return obs, reward, dones, extras

    batch = climb(pool_of(Endless(Ladder(longest=1), 2)), 1, 1)
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True] * 2, [False] * 2)


def test_who_is_not_asked_steps_too_and_nobody_hears_of_it() -> None:
    pool = pool_of(Isaac(Ladder(), 4))
    climb(pool, 1, 1, 0, 1)
    pool.send(np.array([[1], [0]]), np.array([3, 1]))
    batch = pool.recv(2)
    assert batch.env_ids.tolist() == [3, 1]
    assert batch.reward.tolist() == [2, 0]
    assert pool.obs[PLAIN][:, 0].tolist() == [2, 0, -2, 2]


def test_what_stood_somewhere_begins_anew_with_another_seed() -> None:
    envs = Isaac(Ladder(), 3)
    pool = pool_of(envs)
    pool.counts(5)
    climb(pool, 1, 1, 1)
    assert pool.restore(pool.state()).tolist() == [0, 1, 2]
    assert pool.obs[PLAIN].tolist() == [[0, 0, 0]] * 3
    assert envs.seeds == [7, 12]
    assert pool.counts(1).tolist() == [6], "the count goes on"


def test_it_is_closed_with_its_pool() -> None:
    envs = Isaac(Ladder(), 3)
    pool_of(envs).close()
    assert envs.closed == 1


def test_a_maker_is_given_what_it_requires() -> None:
    made: Any = EnvFactory("device_envs:ladders").make(num_envs=6, device="cpu")
    assert is_device_vector(made)
    assert made.num_envs == 6
    made = EnvFactory("device_envs:ladders", {"num_envs": 3}).make(num_envs=6, device="cpu")
    assert made.num_envs == 3
    assert EnvFactory("device_envs:four_poles").make(num_envs=6, device="cpu").num_envs == 4  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="missing a required argument: 'num_envs'"):
        EnvFactory("device_envs:ladders").make(device="cpu")
    with pytest.raises(ConfigError, match="steps many at once"):
        EnvFactory("device_envs:four_poles")()


@pytest.mark.parametrize("other", [Ladder(), Ladder, EnvFactory("CartPole-v1"), None, "env"])
def test_what_is_no_vector_environment_on_a_device(other: Any) -> None:
    assert not is_device_vector(other)


# What is refused.


def spoiled(part: int, change: Callable[[Any], Any], made: type[Isaac] = Isaac) -> Isaac:
    class Spoiled(made):  # type: ignore[misc, valid-type]
        def step(self, actions: torch.Tensor) -> Any:
            answer = list(super().step(actions))
            answer[part] = change(answer[part])
            return tuple(answer)

    return Spoiled(Ladder(), 3)


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        (
            0,
            lambda _: np.zeros((3, 3), np.float32),
            "observation is a ndarray, and must be a torch",
        ),
        (
            0,
            lambda x: {**x, "policy": x["policy"][:2]},
            r"observation has shape \(2, 3\), and must",
        ),
        (0, lambda x: {**x, "policy": x["policy"].long()}, "torch.int64, and must be floating"),
        (0, lambda x: {"critic": x["critic"]}, "observation is missing: there is 'critic'"),
        (1, lambda x: x.to("meta"), "reward is on meta, and must be on cpu"),
        (1, lambda x: x[:, None], r"reward has shape \(3, 1\), and must have \(3,\)"),
        (1, lambda x: x.long(), "reward is of type torch.int64, and must be floating point"),
        (1, lambda x: x.tolist(), "reward is a list, and must be a torch tensor"),
        (2, lambda x: x.float(), "terminated is of type torch.float32, and must be bool or whole"),
        (3, lambda x: x[:1], r"truncated has shape \(1,\), and must have \(3,\)"),
        (
            4,
            lambda x: {"final_obs": x["final_obs"]["critic"]},
            r"final observation has shape \(3, 7",
        ),
        (4, lambda x: None, r"returned 5 values \(dict, Tensor, Tensor, Tensor, NoneType\)"),
    ],
)
def test_a_step_that_answers_amiss(part: int, change: Any, says: str) -> None:
    pool = pool_of(spoiled(part, change))
    with pytest.raises(BadValueError, match=says):
        climb(pool, 1, 1, 1)


def test_dones_that_are_amiss() -> None:
    wrong = {"time_outs": torch.zeros(2)}
    pool = pool_of(spoiled(3, lambda extras: wrong, RslRl))
    with pytest.raises(BadValueError) as error:
        climb(pool, 1, 1, 1)
    assert str(error.value).splitlines() == [
        "In what step() of test returned, the time_outs has shape (2,), and must have (3,).",
        "In what step() of test returned, the time_outs is of type torch.float32, and must be "
        "bool or whole numbers.",
    ]


def changed(**attributes: Any) -> Isaac:
    envs = Isaac(Ladder(), 3)
    vars(envs).update(attributes)
    return envs


@pytest.mark.parametrize(
    ("envs", "says"),
    [
        (changed(device="meta"), "test lives on meta, and training runs on cpu"),
        (changed(single_action_space=None), "test has no single_action_space; give it that of one"),
        (
            changed(metadata={"autoreset_mode": AutoresetMode.NEXT_STEP}),
            "has to reset in the step that ends an episode",
        ),
        (
            changed(reset=lambda seed: (torch.zeros(3, 3), {"action_mask": torch.ones(3, 2)})),
            "test masks actions, which is not done on the device",
        ),
        (
            changed(single_observation_space=spaces.Box(-1, 1, (3, 3))),
            r"reset\(\) of test returned, the observation has shape \(3, 3\), and must",
        ),
    ],
)
def test_one_that_cannot_be_stepped(envs: Any, says: str) -> None:
    with pytest.raises((ConfigError, BadValueError), match=says):
        pool_of(envs)


def test_one_that_says_that_it_resets_in_the_same_step() -> None:
    pool_of(changed(metadata={"autoreset_mode": AutoresetMode.SAME_STEP}))


def test_a_crowd_wants_more_seeds_than_it_takes() -> None:
    with pytest.raises(ConfigError, match="2 seeds were given, and test takes one"):
        DeviceVectorPool(Isaac(Ladder(), 4), "test", CPU).begin(1, 2)


def test_what_it_raises_is_an_error_of_its_own() -> None:
    def fall(actions: Any) -> Any:
        raise ZeroDivisionError("no ground")

    with pytest.raises(EnvError, match=r"test raised ZeroDivisionError in step\(\): no ground"):
        climb(pool_of(changed(step=fall)), 1, 1, 1)
