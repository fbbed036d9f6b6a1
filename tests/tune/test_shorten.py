"""Shorter rollouts: sizes that divide, and costs as those of the whole ones."""

from __future__ import annotations

import dataclasses

import pytest

from stoker.config import resolve
from stoker.monitor.verdict import Costs
from stoker.pools.choose import Probe
from stoker.tune.pieces import Pieces
from stoker.tune.shorten import factor_for, iteration_s, shortened, shortened_sizes
from stoker.types import ActionSpec, EnvSpec

SPEC = EnvSpec("one", {}, ActionSpec("discrete", (), "int64", (2,), (0,)))
JOB = resolve(
    {"n_envs": 4, "n_steps": 64, "batch_size": 128, "n_epochs": 10, "n_workers": 2, "pool": "io"}
)


def pieces(wall_s: float = 2e-3, cpu_s: float = 2e-3) -> Pieces:
    env = Probe(SPEC, wall_s, cpu_s, False)
    return Pieces(env, {4: 1e-3}, {128: 0.1, 64: 0.06, 32: 0.04}, None)


def test_an_iteration_takes_as_long_as_its_pieces() -> None:
    stepping, deciding, learning = 4 * 2e-3 / 2, 1e-3, 10 * 2 * 0.1
    assert iteration_s(JOB, pieces()) == pytest.approx(64 * (stepping + deciding) + learning)


def test_environments_that_wait_do_so_together() -> None:
    waiting = iteration_s(JOB, pieces(wall_s=0.5, cpu_s=1e-4))
    assert waiting == pytest.approx(64 * (0.5 + 1e-3) + 2.0)


@pytest.mark.parametrize(
    ("seconds", "factor"), [(2.9, 1), (3.1, 2), (11.0, 4), (23.0, 8), (1000.0, 8)]
)
def test_rollouts_are_as_long_as_there_is_time_for(seconds: float, factor: int) -> None:
    assert factor_for(JOB, seconds, most_s=3.0) == factor  # of 64 steps, 8 are left at least


def test_rollouts_are_no_shorter_than_a_minibatch_where_it_must_stay_whole() -> None:
    assert factor_for(JOB, 100.0, most_s=3.0, whole=True) == 2


@pytest.mark.parametrize(
    ("factor", "sizes"), [(1, (64, 128)), (2, (32, 128)), (4, (16, 64)), (8, (8, 32))]
)
def test_minibatches_stay_as_large_as_they_can(factor: int, sizes: tuple[int, int]) -> None:
    assert shortened_sizes(JOB, factor) == sizes
    config = shortened(JOB, factor, pieces()).config
    assert (config.ppo.n_steps, config.minibatch) == sizes
    assert config.total_batch * factor == JOB.total_batch


def test_a_step_costs_what_it_costs_in_the_job() -> None:
    here = Costs(1.0, 2.0, 3.0, 4.0, 6.0, 8.0, overlapped=True)
    job = shortened(JOB, 4, pieces()).costs(here, log_every=2)
    row = (0.1 / 128) / (0.06 / 64)
    assert job == pytest.approx((1.0, 2.0, 3.0, 4.0, 6.0 * row, 8.0 / 4 / 2, True))


def test_logs_that_are_seconds_apart_cost_the_same_however_short_rollouts_are() -> None:
    here = Costs(1.0, 2.0, 3.0, 4.0, 6.0, 8.0, overlapped=True)
    tensors = dataclasses.replace(JOB, env=dataclasses.replace(JOB.env, pool="tensor"))
    assert shortened(tensors, 4, pieces()).costs(here, log_every=0).host == 8.0
    assert shortened(tensors, 4, pieces()).costs(here, log_every=1).host == 2.0
