"""Advantages and returns: closed forms, a reference by definition, and values that would betray."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rollouts import judged
from torch import Tensor

from stoker.algos.returns import ReturnScaler, discounted_sums, gae


class Case(NamedTuple):
    """What advantages follow from, as NumPy arrays; the arguments of `judged`, in its order."""

    reward: np.ndarray
    value: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_value: np.ndarray
    valid: np.ndarray
    last_value: np.ndarray


def quiet(steps: int, envs: int = 1) -> Case:
    """No reward, no value, no end."""
    zeros, never = np.zeros((steps, envs), np.float32), np.zeros((steps, envs), bool)
    return Case(zeros, zeros, never, never, zeros, ~never, np.zeros(envs, np.float32))


def advantages(case: Case, gamma: float, lam: float) -> np.ndarray:
    rollout = judged(*map(torch.from_numpy, case))
    return gae(rollout, rollout.reward, gamma, lam).numpy()


def at(case: Case, *places: tuple[int, int]) -> np.ndarray:
    flags = np.zeros(case.reward.shape, bool)
    for place in places:
        flags[place] = True
    return flags


def by_definition(case: Case, gamma: float, lam: float) -> np.ndarray:
    """The sum over k of (gamma lambda)^k delta_{t+k}, walking forward until something ends it.

    Gaps are left out beforehand, so that the rows around one are neighbours. A cut ends the sum
    without a delta of its own; the row before it bootstraps from the cut row's value.
    """
    result = np.zeros(case.reward.shape)
    ended = case.terminated | case.truncated
    for n in range(case.reward.shape[1]):
        seen = np.flatnonzero(case.valid[:, n] | ended[:, n])
        values = [*case.value[seen, n].tolist(), float(case.last_value[n])]
        for start, t in enumerate(seen):
            weight = 1.0
            for place, k in enumerate(seen[start:], start):
                if not case.valid[k, n]:
                    break
                if case.terminated[k, n]:
                    successor = 0.0
                elif case.truncated[k, n]:
                    successor = float(case.final_value[k, n])
                else:
                    successor = values[place + 1]
                delta = float(case.reward[k, n]) + gamma * successor - values[place]
                result[t, n] += weight * delta
                if ended[k, n]:
                    break
                weight *= gamma * lam
    return result


def test_constant_reward_and_no_value_is_a_geometric_series() -> None:
    case = quiet(6)._replace(reward=np.ones((6, 1), np.float32))
    ratio = 0.9 * 0.8
    expected = [(1 - ratio ** (6 - t)) / (1 - ratio) for t in range(6)]
    np.testing.assert_allclose(advantages(case, 0.9, 0.8)[:, 0], expected, rtol=1e-6)


def test_lambda_0_is_the_one_step_error() -> None:
    value = np.array([[3.0], [5.0], [7.0]], np.float32)
    reward = np.array([[10.0], [20.0], [30.0]], np.float32)
    case = quiet(3)._replace(reward=reward, value=value, last_value=np.array([9.0], np.float32))
    expected = [10 + 0.5 * 5 - 3, 20 + 0.5 * 7 - 5, 30 + 0.5 * 9 - 7]
    np.testing.assert_allclose(advantages(case, 0.5, 0.0)[:, 0], expected)


def test_lambda_1_is_the_discounted_return_less_the_value() -> None:
    value = np.array([[3.0], [5.0], [7.0]], np.float32)
    reward = np.array([[10.0], [20.0], [30.0]], np.float32)
    case = quiet(3)._replace(reward=reward, value=value, last_value=np.array([16.0], np.float32))
    returns = [10 + 10 + 7.5 + 2, 20 + 15 + 4, 30 + 8]
    np.testing.assert_allclose(advantages(case, 0.5, 1.0)[:, 0], np.array(returns) - value[:, 0])


def test_single_step_episodes_owe_nothing_to_their_neighbours() -> None:
    case = quiet(4)._replace(
        reward=np.arange(4, dtype=np.float32)[:, None],
        value=np.full((4, 1), 100.0, np.float32),
        terminated=np.ones((4, 1), bool),
        last_value=np.array([1e6], np.float32),
    )
    np.testing.assert_allclose(advantages(case, 0.99, 0.95)[:, 0], np.arange(4) - 100.0)


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_a_truncated_episode_bootstraps_from_its_final_observation(lam: float) -> None:
    """V(obs_t) is 1, V(the next episode's first) 1000, V(final_obs) a million: no mistake hides."""
    case = quiet(2)._replace(
        value=np.array([[1.0], [1000.0]], np.float32), last_value=np.array([1000.0], np.float32)
    )
    case = case._replace(
        truncated=at(case, (0, 0)), final_value=np.array([[1e6], [0.0]], np.float32)
    )
    assert advantages(case, 0.5, lam)[0, 0] == pytest.approx(0.5 * 1e6 - 1)


def test_terminated_wins_over_truncated() -> None:
    case = quiet(2)._replace(
        value=np.array([[1.0], [1000.0]], np.float32),
        final_value=np.full((2, 1), 1e6, np.float32),
    )
    case = case._replace(terminated=at(case, (0, 0)), truncated=at(case, (0, 0)))
    assert advantages(case, 0.5, 0.95)[0, 0] == -1.0


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_lambda_is_cut_at_every_end(how: str) -> None:
    """A million of reward right after an end must not reach the episode before it."""
    case = quiet(4)._replace(reward=np.array([[0.0], [0.0], [1e6], [1e6]], np.float32))
    case = case._replace(**{how: at(case, (1, 0))})
    advantage = advantages(case, 1.0, 1.0)[:, 0]
    np.testing.assert_array_equal(advantage, [0.0, 0.0, 2e6, 1e6])


def test_the_last_step_bootstraps_from_the_last_value() -> None:
    case = quiet(3, 2)._replace(last_value=np.array([10.0, 20.0], np.float32))
    case = case._replace(terminated=at(case, (2, 1)))
    np.testing.assert_allclose(advantages(case, 0.5, 0.5)[2], [5.0, 0.0])


@pytest.mark.parametrize("garbage", [1e30, np.nan, np.inf])
def test_invalid_rows_have_no_advantage_and_leak_nothing(garbage: float) -> None:
    case = quiet(4)._replace(reward=np.ones((4, 1), np.float32))
    invalid = at(case, (2, 0))
    reward, final_value = case.reward.copy(), case.final_value.copy()
    reward[invalid] = final_value[invalid] = garbage
    case = case._replace(reward=reward, final_value=final_value, valid=~invalid, truncated=invalid)
    np.testing.assert_array_equal(advantages(case, 1.0, 1.0)[:, 0], [2.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_the_row_before_a_cut_bootstraps_from_the_cut_rows_own_value(lam: float) -> None:
    """V of the cut row is 1000; of the row after it, of its final_obs and of the last a million."""
    case = quiet(3)._replace(
        value=np.array([[1.0], [1000.0], [1e6]], np.float32),
        final_value=np.full((3, 1), 1e6, np.float32),
        last_value=np.array([1e6], np.float32),
    )
    cut = at(case, (1, 0))
    case = case._replace(truncated=cut, valid=~cut)
    advantage = advantages(case, 0.5, lam)[:, 0]
    np.testing.assert_allclose(advantage, [0.5 * 1000 - 1, 0.0, 0.5 * 1e6 - 1e6])


@pytest.mark.parametrize("garbage", [1e30, np.nan, np.inf])
def test_a_gap_is_passed_over_as_if_it_were_not_there(garbage: float) -> None:
    """Rows 1, 2 and 5 are gaps, whatever is written there; the last is one too."""
    gaps = [1, 2, 5, 8]
    whole, kept = quiet(9, 2), [t for t in range(9) if t not in gaps]
    random = np.random.default_rng(3)
    numbers = {
        name: random.normal(size=(9, 2)).astype(np.float32)
        for name in ("reward", "value", "final_value")
    }
    last = np.array([3.0, -2.0], np.float32)
    whole = whole._replace(**numbers, truncated=at(whole, (3, 1), (7, 0)), last_value=last)
    whole = whole._replace(terminated=at(whole, (6, 1)))
    without = Case(*(field[kept] for field in whole[:-1]), last)
    for field in (whole.reward, whole.value, whole.final_value):
        field[gaps] = garbage
    whole.valid[gaps] = False
    found = advantages(whole, 0.9, 0.8)
    np.testing.assert_array_equal(found[kept], advantages(without, 0.9, 0.8))
    np.testing.assert_array_equal(found[gaps], 0.0)


def test_an_environment_that_made_no_step_has_no_advantage() -> None:
    case = quiet(4, 2)._replace(
        value=np.full((4, 2), 7.0, np.float32), last_value=np.full(2, 1e6, np.float32)
    )
    case.valid[:, 1] = False
    np.testing.assert_array_equal(advantages(case, 1.0, 1.0)[:, 1], np.zeros(4))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    steps, envs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    shape = (steps, envs)
    number = st.floats(-10, 10, width=32)

    def numbers(of: tuple[int, ...]) -> np.ndarray:
        return draw(hnp.arrays(np.float32, of, elements=number))

    def flags(mostly: bool) -> np.ndarray:
        odds = st.sampled_from([mostly, mostly, mostly, not mostly])
        return draw(hnp.arrays(bool, shape, elements=odds))

    return Case(
        reward=numbers(shape),
        value=numbers(shape),
        terminated=flags(False),
        truncated=flags(False),
        final_value=numbers(shape),
        valid=flags(True),
        last_value=numbers((envs,)),
    )


@settings(max_examples=200, deadline=None)
@given(cases(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_gae_equals_its_definition(case: Case, gamma: float, lam: float) -> None:
    expected = by_definition(case, gamma, lam)
    np.testing.assert_allclose(advantages(case, gamma, lam), expected, rtol=1e-4, atol=1e-3)


def test_gae_equals_its_definition_for_every_pattern_of_rows() -> None:
    """A step, a terminated one, a truncated one, a gap or a cut, in all ways to set five rows."""
    kinds = np.array(list(itertools.product(range(5), repeat=5))).T
    random = np.random.default_rng(5)

    def numbers(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    step, terminated, truncated, _, cut = (kinds == kind for kind in range(5))
    case = Case(
        reward=numbers(*kinds.shape),
        value=numbers(*kinds.shape),
        terminated=terminated,
        truncated=truncated | cut,
        final_value=numbers(*kinds.shape),
        valid=step | terminated | truncated,
        last_value=numbers(kinds.shape[1]),
    )
    expected = by_definition(case, 0.9, 0.8)
    np.testing.assert_allclose(advantages(case, 0.9, 0.8), expected, rtol=1e-4, atol=1e-5)


def sums_by_definition(
    reward: np.ndarray, ended: np.ndarray, valid: np.ndarray, gamma: float
) -> np.ndarray:
    """Every episode's discounted sum so far, each row from scratch; only steps take time."""
    sums = np.zeros(reward.shape)
    for t, n in np.ndindex(reward.shape):
        k, age = t, 0
        while True:
            if valid[k, n]:
                sums[t, n] += gamma**age * float(reward[k, n])
            if k == 0 or ended[k - 1, n]:
                break
            k -= 1
            age += valid[k, n]
    return sums


class Earned(NamedTuple):
    """Twenty steps of three environments: rewards, where episodes ended, what is a transition."""

    reward: np.ndarray
    ended: np.ndarray
    valid: np.ndarray

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        reward, ended, valid = map(torch.from_numpy, self)
        return reward, ended, valid


@pytest.fixture(params=["all valid", "with cuts and gaps"])
def earned(request: pytest.FixtureRequest) -> Earned:
    random = np.random.default_rng(7)
    reward = random.normal(3.0, 2.0, (20, 3)).astype(np.float32)
    ended, valid = random.random((20, 3)) < 0.15, np.ones((20, 3), bool)
    if request.param != "all valid":
        valid = random.random((20, 3)) < 0.7
        reward[~valid] = np.nan
        assert (ended & ~valid).any()
        assert (~ended & ~valid).any()
    return Earned(reward, ended, valid)


def test_discounted_sums_equal_their_definition(earned: Earned) -> None:
    reward, ended, valid = earned.tensors()
    sums, carried = discounted_sums(reward, ended, valid, torch.zeros(3), 0.9)
    expected = sums_by_definition(*earned, 0.9)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    onwards = np.where(earned.valid[-1], 0.9, 1.0) * expected[-1]
    np.testing.assert_allclose(carried, np.where(earned.ended[-1], 0.0, onwards), rtol=1e-5)


def test_a_gap_takes_no_time() -> None:
    reward, never = torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.bool)
    valid = torch.tensor([[True], [False], [False], [True]])
    sums, carried = discounted_sums(reward, never, valid, torch.zeros(1), 0.5)
    assert sums[[0, 3], 0].tolist() == [1.0, 1.5]
    assert carried.tolist() == [0.75]


def test_discounted_sums_of_two_rollouts_equal_those_of_one_twice_as_long(earned: Earned) -> None:
    reward, ended, valid = earned.tensors()
    whole, at_the_end = discounted_sums(reward, ended, valid, torch.zeros(3), 0.9)
    first, carried = discounted_sums(reward[:10], ended[:10], valid[:10], torch.zeros(3), 0.9)
    second, carried = discounted_sums(reward[10:], ended[10:], valid[10:], carried, 0.9)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=0)
    torch.testing.assert_close(carried, at_the_end, rtol=0, atol=0)


def test_scaler_divides_by_the_deviation_of_the_discounted_return(earned: Earned) -> None:
    scaled = ReturnScaler(3, 0.9)(*earned.tensors())
    deviation = sums_by_definition(*earned, 0.9)[earned.valid].std()
    expected = earned.reward / deviation
    np.testing.assert_allclose(scaled[earned.valid], expected[earned.valid], rtol=1e-5)


def test_scaler_over_two_rollouts_knows_what_it_would_over_one(earned: Earned) -> None:
    reward, ended, valid = earned.tensors()
    once, twice = ReturnScaler(3, 0.9), ReturnScaler(3, 0.9)
    whole = once(reward, ended, valid)
    twice(reward[:10], ended[:10], valid[:10])
    second = twice(reward[10:], ended[10:], valid[10:])
    torch.testing.assert_close(second, whole[10:], equal_nan=True)
    for name, known in once.state_dict().items():
        torch.testing.assert_close(twice.state_dict()[name], known, msg=name)


def test_scaler_cuts_off_at_ten_deviations() -> None:
    reward = torch.zeros(1000, 1)
    reward[500] = 1e6
    ended, valid = torch.ones(1000, 1, dtype=torch.bool), torch.ones(1000, 1, dtype=torch.bool)
    assert ReturnScaler(1, 0.9)(reward, ended, valid)[500] == 10.0


@pytest.mark.parametrize("garbage", [1e9, float("nan")])
def test_scaler_is_not_moved_by_invalid_rows(garbage: float) -> None:
    """Neither by the row itself nor by the sums that follow it, in this rollout or the next."""
    reward, never = torch.ones(6, 1), torch.zeros(6, 1, dtype=torch.bool)
    valid = torch.ones(6, 1, dtype=torch.bool)
    valid[2] = False
    clean, dirty = ReturnScaler(1, 0.9), ReturnScaler(1, 0.9)
    reward[2] = 0.0
    expected = clean(reward, never, valid)
    reward[2] = garbage
    scaled = dirty(reward, never, valid)
    torch.testing.assert_close(scaled[valid], expected[valid], rtol=0, atol=0)
    for name, known in clean.state_dict().items():
        torch.testing.assert_close(dirty.state_dict()[name], known, rtol=0, atol=0, msg=name)
