"""Every rule between settings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.config import resolve
from stoker.config.check import divisors, find_problems, largest_divisor
from stoker.config.load import KNOWN, from_flat
from stoker.errors import ConfigError


def problems_of(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(settings)
    return caught.value.problems


@given(st.integers(1, 200_000))
def test_divisors_are_all_of_them_in_order(total: int) -> None:
    found = divisors(total)
    assert all(total % d == 0 for d in found)
    assert found == sorted(set(found))
    assert [total // d for d in reversed(found)] == found
    assert found[0] == 1
    below_root = [d for d in range(1, math.isqrt(total) + 1) if total % d == 0]
    assert found[: len(below_root)] == below_root


@given(st.integers(1, 100_000), st.integers(-5, 100_000))
def test_the_largest_divisor_up_to_an_aim(total: int, aim: int) -> None:
    found = largest_divisor(total, aim)
    assert total % found == 0
    assert found <= max(1, aim)
    assert not any(total % d == 0 for d in range(found + 1, min(aim, total) + 1))


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("n_envs", 0, 1),
        ("n_envs", -4, 1),
        ("n_workers", -1, 0),
        ("in_flight", -1, 0),
        ("max_lag", 0, 1),
        ("n_steps", 0, 1),
        ("n_epochs", 0, 1),
        ("timesteps", 0, 1),
        ("seed", -1, 0),
        ("log_every", -1, 0),
        ("checkpoint_every", -1, 0),
        ("keep_checkpoints", 0, 1),
        ("eval_every", -1, 0),
        ("eval_episodes", -1, 0),
        ("torch_threads", 0, 1),
        ("max_bad_updates", -1, 0),
    ],
)
def test_a_count_below_its_least(name: str, value: int, least: int) -> None:
    assert problems_of(**{name: value}) == [f"{name} is {value}; it must be {least} or more."]


def test_more_threads_than_there_can_be() -> None:
    said = ["torch_threads is 100000; it must be 1024 or less."]
    assert problems_of(torch_threads=100_000) == said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1.01),
        ("gamma", -0.1),
        ("gae_lambda", 2),
        ("learning_rate", 0),
        ("learning_rate", -1e-3),
        ("clip_range", 0),
        ("clip_range_vf", 0),
        ("target_kl", -1),
        ("max_grad_norm", 0),
        ("adam_eps", 0),
        ("stop_deadline", 0),
        ("ent_coef", -0.01),
        ("vf_coef", -1),
        ("network_arch", ""),
        ("network_arch", [64, 0]),
        ("network_arch", "64,-64"),
        ("critic_arch", "64,0"),
        ("env", " "),
        ("run_name", "../elsewhere"),
        ("run_name", "a/b"),
        ("run_name", ".hidden"),
        ("run_name", "x" * 101),
        ("run_name", "line\n"),
        ("batch_size", 0),
        ("batch_size", -64),
        ("micro_batch", -1),
        ("seed", "1e20"),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: object) -> None:
    (problem,) = problems_of(**{name: value})
    assert problem.startswith(f"{name} ")
    assert "must" in problem or "cannot" in problem or "name a" in problem


def test_one_trunk_has_no_layers_for_the_critic_alone() -> None:
    (problem,) = problems_of(algo="dqn", critic_arch=[32])
    assert problem == "critic_arch is '32', and DQN has no critic. Leave it out."
    (problem,) = problems_of(shared_trunk=True, critic_arch=[32])
    assert problem.startswith("critic_arch is '32', and shared_trunk is on")
    same = resolve({"shared_trunk": True, "critic_arch": [32], "network_arch": [32]})
    assert same.network.critic_sizes == (32,)


@pytest.mark.parametrize(
    ("name", "value"),
    [("gamma", 0), ("gamma", 1), ("ent_coef", 0), ("n_workers", 0), ("target_kl", None)],
)
def test_a_value_on_the_edge_is_allowed(name: str, value: object) -> None:
    assert resolve({name: value}).flat()[name] == value


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["learning_rate", "gamma", "log_std_init", "require_reward"])
def test_no_number_is_nan_or_infinite_however_it_came(name: str, bad: float) -> None:
    """Flags build the dataclasses without passing through the loader."""
    good = resolve({})
    group = KNOWN[name].group
    bad_group = dataclasses.replace(getattr(good, group), **{name: bad})
    problems = find_problems(dataclasses.replace(good, **{group: bad_group}))
    assert problems
    assert all(name in problem for problem in problems)


def test_a_batch_size_that_does_not_divide_shows_the_arithmetic_and_the_nearest() -> None:
    (problem,) = problems_of(n_envs=6, n_steps=10, batch_size=16)
    assert "n_envs 6 x n_steps 10 = 60, and 60 / 16 leaves 12" in problem
    assert "12, 15, 20, 30" in problem
    assert "batch_size auto" in problem


@pytest.mark.parametrize(
    ("micro_batch", "rows"), [(0, 20), (7, 7), ("1e1", 10), (20, 20), (64, 20)]
)
def test_a_micro_batch_need_not_divide_and_is_at_most_the_minibatch(
    micro_batch: object, rows: int
) -> None:
    sizes = {"n_envs": 6, "n_steps": 10, "batch_size": 20}
    assert resolve({**sizes, "micro_batch": micro_batch}).rows_at_once == rows


def test_a_batch_size_above_the_total_batch_lists_what_lies_below() -> None:
    (problem,) = problems_of(n_envs=6, n_steps=10, batch_size=64)
    assert "The nearest that divide it are 30, 60;" in problem


def test_one_row_has_no_deviation() -> None:
    (problem,) = problems_of(batch_size=1)
    assert "normalize_advantage" in problem
    assert resolve({"batch_size": 1, "normalize_advantage": False}).minibatch == 1


@pytest.mark.parametrize("batch_size", ["auto", 64])
def test_a_rollout_beyond_any_memory_is_refused_at_once(batch_size: object) -> None:
    """Looking for the divisors of 1e18 would take minutes."""
    (problem,) = problems_of(n_envs="1B", n_steps="1B", batch_size=batch_size)
    assert "1,000,000,000,000,000,000 rows" in problem


def test_sizes_that_follow() -> None:
    config = resolve({"n_envs": 6, "n_steps": 10, "batch_size": 20, "timesteps": 130})
    assert config.total_batch == 60
    assert config.n_minibatches == 3
    assert config.n_iterations == 3  # 130 steps are two rollouts and a bit: rounded up


def test_from_flat_checks_too() -> None:
    with pytest.raises(ConfigError, match="n_envs is 0"):
        from_flat({**resolve({}).flat(), "n_envs": 0})
