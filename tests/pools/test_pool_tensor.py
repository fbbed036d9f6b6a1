"""The tensor pool: resets, flags, random numbers, and the same answers for the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensor_envs import LONGEST, TOP, Dice, Ladder

from stoker.errors import EnvError
from stoker.pools.actions import ActionDecoder
from stoker.pools.draws import TensorRng, key_of
from stoker.pools.spaces import ActionCodec
from stoker.pools.tensor import TensorPool, describe_tensor_env
from stoker.types import PLAIN

CPU = torch.device("cpu")


def pool_of(env: Any, n_envs: int = 3) -> TensorPool:
    pool = TensorPool(env, describe_tensor_env("test", env), n_envs, CPU)
    pool.begin(7)
    return pool


def climb(pool: TensorPool, *choices: int) -> Any:
    return pool.advance(torch.tensor(choices)[:, None])


def test_where_an_episode_ends_the_next_begins_in_the_same_step() -> None:
    pool = pool_of(Ladder())
    for step in range(1, TOP):
        batch = climb(pool, 1, 1, 0)
        assert batch.reward.tolist() == [step, step, -step]
        assert not batch.terminated.any()
    batch = climb(pool, 1, 0, 0)
    assert batch.terminated.tolist() == [True, False, False]
    assert batch.final_obs[PLAIN][0].tolist() == [TOP, TOP / 2 - TOP, TOP], "where it led"
    assert batch.obs[PLAIN][0].tolist() == [0, 0, 0], "the next one's first"
    assert torch.equal(batch.obs[PLAIN][1:], batch.final_obs[PLAIN][1:])
    assert pool.obs is batch.obs
    assert climb(pool, 1, 1, 1).reward.tolist() == [1, TOP - 1, 1 - TOP]


def test_an_episode_that_is_cut_off_and_one_that_ends_at_that_moment() -> None:
    pool = pool_of(Ladder(), 2)
    up_and_down = [1, 0] * (LONGEST // 2 - 1)
    for last in (*up_and_down, 1, 1):
        climb(pool, last, 0)
    batch = climb(pool, 1, 0)
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False] * 2, [True] * 2)
    pool = pool_of(Ladder(), 1)
    for choice in [0, 1, 0, 1, 0, 1, 1, 1, 1, 0]:
        batch = climb(pool, choice)
    assert not (batch.terminated | batch.truncated).any()
    pool = pool_of(Ladder(), 1)
    pool._state["rung"] += TOP - 1
    pool._state["age"] += LONGEST - 1
    batch = climb(pool, 1)
    assert (batch.terminated.item(), batch.truncated.item()) == (True, False), "terminated wins"


def test_random_numbers_follow_from_the_seed_and_are_never_the_same_twice() -> None:
    seen = []
    for seed in (7, 7, 8):
        pool = pool_of(Dice())
        pool.begin(seed)
        rows = [pool.obs["dice"]]
        rows += [pool.advance(torch.zeros(3, 2)).final_obs["dice"] for _ in range(40)]
        seen.append(torch.cat(rows))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert len(seen[0].flatten().unique()) == seen[0].numel()


def test_the_host_gets_what_the_device_has() -> None:
    device, host = pool_of(Dice(), 4), pool_of(Dice(), 4)
    first = host.reset(7)
    assert np.array_equal(first.obs["dice"], device.obs["dice"].numpy())
    assert first.valid.all()
    for step in range(30):
        actions = torch.sin(torch.arange(8.0) + step).view(4, 2)
        on_device, on_host = device.advance(actions), host.step(actions.numpy())
        assert on_host.env_ids.tolist() == [0, 1, 2, 3]
        for name in ("reward", "terminated", "truncated"):
            assert np.array_equal(getattr(on_host, name), getattr(on_device, name).numpy())
        for leaf in ("dice", "said"):
            assert np.array_equal(on_host.obs[leaf], on_device.obs[leaf].numpy())
            assert np.array_equal(on_host.final_obs[leaf], on_device.final_obs[leaf].numpy())
            assert np.array_equal(host.seen[0][leaf], on_device.obs[leaf].numpy())


def test_some_can_be_stepped_without_the_others() -> None:
    pool = pool_of(Ladder(), 4)
    pool.send(np.array([[1], [0]]), np.array([3, 1]))
    batch = pool.recv(2)
    assert batch.env_ids.tolist() == [3, 1]
    assert batch.reward.tolist() == [1, -1]
    assert pool.obs[PLAIN][:, 0].tolist() == [0, -1, 0, 1]


def test_it_goes_on_from_its_state_with_the_same_bits() -> None:
    pool, other = pool_of(Dice()), pool_of(Dice())
    for _ in range(5):
        pool.advance(torch.ones(3, 2))
    other.begin(99)
    other.restore(pool.state())
    for _ in range(20):
        ours, theirs = (each.advance(torch.ones(3, 2)) for each in (pool, other))
        assert torch.equal(ours.reward, theirs.reward)
        assert torch.equal(ours.obs["dice"], theirs.obs["dice"])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiDiscrete([[3, 4], [2, 2]]),
        spaces.MultiBinary(3),
        spaces.Box(-2, 4, (2,), np.float32),
        spaces.Box(np.array([-1, -np.inf], np.float32), np.array([3, np.inf], np.float32)),
    ],
    ids=str,
)
def test_actions_are_those_that_other_pools_would_give(space: Any) -> None:
    spec = describe_tensor_env("dice", Dice(space)).action
    rng = np.random.default_rng(0)
    actions = rng.normal(0, 2, (50, spec.width)).astype(np.float32)
    if not spec.continuous:
        actions = rng.integers(0, spec.nvec or 2, (50, spec.width))
    expected = ActionCodec(spec).encode(actions)
    decoded = ActionDecoder(spec, CPU)(torch.from_numpy(actions)).numpy()
    assert decoded.shape == expected.shape
    np.testing.assert_allclose(decoded, expected, rtol=1e-6, atol=1e-6)


def test_categories_are_counted_from_0() -> None:
    class Ages(Ladder):
        observation_space: Any = spaces.Discrete(50, start=3)

        def observe(self, state: dict[str, torch.Tensor]) -> torch.Tensor:
            return state["age"] + 3

    pool = pool_of(Ages())
    assert pool.obs[PLAIN].tolist() == [0, 0, 0]
    assert climb(pool, 0, 0, 0).obs[PLAIN].tolist() == [1, 1, 1]


def test_the_state_of_another_environment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"state\.age, .*state\.said is not what"):
        pool_of(Dice()).restore(pool_of(Ladder()).state())


def test_what_an_environment_raises_is_an_error_of_its_own() -> None:
    class Raises(Ladder):
        def step(self, *given: Any) -> Any:
            raise ZeroDivisionError("no wind")

    with pytest.raises(EnvError, match=r"test raised ZeroDivisionError in step\(\): no wind"):
        climb(pool_of(Raises()), 1, 1, 1)


# Random numbers.


def rng_of(n: int, step: int = 0, seed: int = 0, first: int = 0) -> TensorRng:
    ids = torch.arange(first, first + n)
    return TensorRng(key_of(torch.full_like(ids, seed)), ids, torch.tensor(step))


def test_a_row_gets_its_numbers_in_whatever_batch() -> None:
    whole, part = rng_of(100, step=5), rng_of(10, step=5, first=40)
    for tail in ((), (3,), (2, 2)):
        assert torch.equal(whole.uniform(*tail)[40:50], part.uniform(*tail))
    assert torch.equal(whole.normal(2)[40:50], part.normal(2))


def test_numbers_are_uniform_and_normal_and_none_hangs_on_another() -> None:
    draws = [rng_of(500, step) for step in range(40)]
    uniform = torch.stack([torch.cat((rng.uniform(3), rng.uniform(1)), 1) for rng in draws])
    assert uniform.min() >= 0
    assert uniform.max() < 1
    count = uniform.numel()
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5
    counts = torch.histc(uniform, 64, 0, 1)
    assert ((counts - count / 64) ** 2 / (count / 64)).sum() < 63 + 5 * 126**0.5
    centred = uniform.double() - 0.5
    for one, other in (
        (centred[1:], centred[:-1]),  # steps
        (centred[:, 1:], centred[:, :-1]),  # environments
        (centred[..., 1:], centred[..., :-1]),  # numbers and calls
    ):
        assert abs((one * other).mean() * 12) < 5 / one.numel() ** 0.5
    normal = torch.stack([rng.normal(4) for rng in draws])
    assert abs(normal.mean()) < 5 / normal.numel() ** 0.5
    assert abs(normal.square().mean() - 1) < 5 * (2 / normal.numel()) ** 0.5
    assert abs((normal**4).mean() - 3) < 5 * (96 / normal.numel()) ** 0.5


def test_seeds_are_apart() -> None:
    firsts = torch.stack([rng_of(4, seed=seed).uniform(4).flatten() for seed in range(500)])
    assert len(firsts.unique()) > 0.99 * firsts.numel()
    assert abs(firsts.mean() - 0.5) < 5 * (1 / 12 / firsts.numel()) ** 0.5


def test_too_many_numbers_in_one_call() -> None:
    with pytest.raises(ValueError, match="1025 numbers at once; ask for 1024"):
        rng_of(2).uniform(1025)
    assert rng_of(2).uniform(32, 32).shape == (2, 32, 32)
