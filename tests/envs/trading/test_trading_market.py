"""The made-up market: the same again, and with what it promises in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from portfolios import begin, rng_at

from stoker.envs.trading.bars import COLUMNS
from stoker.envs.trading.env import Trading
from stoker.envs.trading.market import synthetic_bars


def test_a_seed_says_it_all() -> None:
    one, again, other = (synthetic_bars(3, 50, seed) for seed in (1, 1, 2))
    for column in COLUMNS[1:]:
        assert np.array_equal(getattr(one, column), getattr(again, column))
        assert not np.array_equal(getattr(one, column), getattr(other, column))


def test_it_has_a_common_factor_and_volatility_that_clusters() -> None:
    bars = synthetic_bars(4, 5000)
    moves = np.diff(np.log(bars.close), axis=0)
    assert np.corrcoef(moves.T)[np.triu_indices(4, 1)].min() > 0.15
    assert 0.005 < moves.std() < 0.02
    size = np.abs(moves[:, 0])
    assert np.corrcoef(size[:-1], size[1:])[0, 1] > 0.1
    assert np.corrcoef(size, bars.volume[1:, 0])[0, 1] > 0.1


@pytest.mark.parametrize("split", ["train", "test"])
def test_momentum_pays_after_costs(split: str) -> None:
    env = Trading(split=split, episode_bars=64)  # type: ignore[arg-type]
    state, earned, ids = begin(env, 64), torch.zeros(64), torch.arange(64)
    for number in range(1, 65):
        returns = env.observe(state)[:, : 16 * 3 * 4].view(64, 16, 3, 4)[:, :, 0]
        action = (returns.mean(1) / returns.std(1)).clamp(-1, 1)
        step = env.step(state, action, rng_at(number, ids))
        state, earned = step.state, earned + step.reward
    assert earned.mean() > 2
