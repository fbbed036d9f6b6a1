"""What a portfolio is worth: against plain Python, and where it can be said beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from portfolios import Account, bars_of, begin, play

from stoker.envs.trading.bars import Bars
from stoker.envs.trading.env import Trading

STEPS = 4
PRICE = st.floats(80.0, 120.0)  # a short loses half at most: rounding grows near ruin
WEIGHT = st.floats(-1.0, 1.0, width=32)


def env_of(bars: Bars, **options: Any) -> Trading:
    """One episode, over all bars: those of training come before them."""
    twice = bars_of(*(np.vstack((x, x)) for x in (bars.open, bars.close, bars.volume)))
    settings_ = {"split": "test", "train_share": 0.5, "lookback": 1, "cost": 0.0} | options
    length = len(bars) - 1 - settings_["lookback"]
    return Trading(twice, episode_bars=length, **settings_)


def held_up(*worth: float) -> Bars:
    """One asset whose price is `worth`, at the open as at the close."""
    return bars_of([[price] for price in worth], [[price] for price in worth])


def liquidity(earlier: float, last: float) -> float:
    """Volume over its mean of two bars, a tenth at least, 1 where there was none."""
    mean = (earlier + last) / 2
    return max(last / mean, 0.1) if mean > 0 else 1.0


@given(
    assets=st.integers(1, 4),
    data=st.data(),
    cost=st.floats(0, 0.02),
    slippage=st.floats(0, 0.02),
)
@settings(max_examples=60, deadline=None)
def test_it_keeps_the_account_that_plain_python_keeps(
    assets: int, data: st.DataObject, cost: float, slippage: float
) -> None:
    def rows(what: st.SearchStrategy[float], count: int) -> list[list[float]]:
        row = st.lists(what, min_size=assets, max_size=assets)
        return data.draw(st.lists(row, min_size=count, max_size=count))

    open_, close = rows(PRICE, STEPS + 3), rows(PRICE, STEPS + 3)
    volume, actions = rows(st.floats(0.0, 100.0), STEPS + 3), rows(WEIGHT, STEPS)
    env = env_of(bars_of(open_, close, volume), cost=cost, slippage=slippage, lookback=2)
    account, peak, worth = Account([0.0] * assets), 1.0, 1.0
    for bar, (step, action) in enumerate(zip(play(env, actions), actions, strict=True), 3):
        usual = [liquidity(*pair) for pair in zip(*volume[bar - 2 : bar], strict=True)]
        turnover, paid = account.rebalance(action, open_[bar], usual, cost, slippage)
        before, worth = worth, account.worth(close[bar])
        peak = max(peak, worth)
        found = {name: float(value) for name, value in step.metrics.items()}
        assert found["worth"] == pytest.approx(worth, rel=1e-5)
        assert found["turnover"] == pytest.approx(turnover, abs=1e-5)
        assert found["cost"] == pytest.approx(paid, abs=1e-6)
        assert found["drawdown"] == pytest.approx(1 - worth / peak, abs=1e-5)
        assert float(step.reward) == pytest.approx(100 * math.log(worth / before), abs=1e-3)
        assert step.state["weights"][0].tolist() == pytest.approx(
            account.weights(close[bar]), abs=1e-5
        )


def test_at_prices_that_stand_still_nothing_is_won_or_lost() -> None:
    env = env_of(bars_of([[7.0, 0.3]] * 6, [[7.0, 0.3]] * 6))
    steps = play(env, [[0.3, -0.9], [-1.0, 1.0], [0.1, 0.1], [0.0, 1.0]])
    for step in steps:
        assert step.metrics["worth"].item() == 1.0
        assert step.reward.item() == 0.0
        assert step.metrics["cost"].item() == 0.0


def test_buying_and_holding_earns_what_the_asset_earns_from_the_first_fill() -> None:
    prices = [10.0, 10.0, 12.0, 9.0, 15.0, 30.0]
    steps = play(env_of(held_up(*prices)), [[1.0]] * 4)
    assert [step.metrics["worth"].item() for step in steps] == pytest.approx([1, 0.75, 1.25, 2.5])
    assert [step.metrics["turnover"].item() for step in steps] == [1, 0, 0, 0]
    assert [step.metrics["drawdown"].item() for step in steps] == pytest.approx([0, 0.25, 0, 0])


def test_an_action_is_filled_at_the_next_open_and_not_before() -> None:
    bars = bars_of([[10.0], [10.0], [20.0], [40.0]], [[10.0], [10.0], [30.0], [60.0]])
    first, second = play(env_of(bars), [[1.0], [0.0]])
    assert first.metrics["worth"].item() == pytest.approx(1.5)  # 20 to 30, not 10 to 30
    assert second.metrics["worth"].item() == pytest.approx(2.0)  # sold at 40, not at 60


def test_weights_drift_between_rebalances() -> None:
    bars = bars_of([[1.0, 1.0]] * 3, [[1.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    (step,) = play(env_of(bars), [[0.5, 0.25]])
    assert step.state["weights"][0].tolist() == pytest.approx([1 / 1.5, 0.25 / 1.5])


def test_a_short_earns_what_falls() -> None:
    steps = play(env_of(held_up(10, 10, 10, 8)), [[-1.0], [-1.0]])
    assert [step.metrics["worth"].item() for step in steps] == pytest.approx([1.0, 1.2])
    env = env_of(held_up(10, 10, 10, 8), allow_short=False, cost=0.01)
    for step in play(env, [[-1.0], [-1.0]]):
        assert step.metrics["worth"].item() == 1.0
        assert step.metrics["turnover"].item() == 0.0


def test_costs_take_their_share_of_what_is_traded() -> None:
    steps = play(env_of(held_up(5, 5, 5, 5, 5), cost=0.01), [[1.0], [-1.0], [-1.0]])
    assert [step.metrics["worth"].item() for step in steps] == pytest.approx(
        [0.99, 0.99 * 0.98, 0.99 * 0.98]
    )
    assert steps[1].metrics["cost"].item() == pytest.approx(0.99 * 0.02)


def test_slippage_grows_with_the_square_root_of_the_trade_over_the_volume() -> None:
    flat = bars_of([[5.0]] * 5, [[5.0]] * 5, [[9.0], [4.0], [1.0], [7.0], [7.0]])
    (first, second) = play(env_of(flat, slippage=0.01), [[0.25], [0.25], [0.25]])[:2]
    assert first.metrics["cost"].item() == pytest.approx(0.01 * 0.25 * 0.5)
    assert second.metrics["cost"].item() < 1e-6
    (first, _) = play(env_of(flat, slippage=0.01, lookback=2), [[1.0], [1.0]])
    assert first.metrics["cost"].item() == pytest.approx(0.01 * math.sqrt(2.5))  # 1 of 2.5


def test_exposure_is_scaled_down_evenly() -> None:
    env = env_of(bars_of([[1.0, 1.0, 1.0]] * 3, [[1.0, 1.0, 1.0]] * 3))
    (step,) = play(env, [[1.0, -0.5, 0.5]])
    assert step.state["weights"][0].tolist() == [0.5, -0.25, 0.25]
    (step,) = play(env, [[0.5, -0.25, 0.0]])
    assert step.state["weights"][0].tolist() == [0.5, -0.25, 0.0]


@pytest.mark.parametrize(
    ("price", "action", "ruined"),
    [(0.9, 1.0, True), (1.1, 1.0, False), (19.1, -1.0, True), (18.9, -1.0, False)],
)
def test_who_has_less_than_a_tenth_is_ruined(price: float, action: float, ruined: bool) -> None:
    bars = bars_of([[10.0]] * 3, [[10.0], [10.0], [price]])
    (step,) = play(env_of(bars), [[action]])
    assert step.terminated.item() is ruined
    assert step.truncated.item()


@pytest.mark.parametrize("at_night", [True, False])
def test_a_short_that_loses_more_than_all_ends_in_ruin_with_finite_numbers(at_night: bool) -> None:
    prices = [[10.0], [10.0], [10.0], [500.0], [500.0]]
    env = env_of(bars_of(prices if at_night else [[10.0]] * 5, prices), cost=0.001)
    _, step, _ = play(env, [[-1.0], [-1.0], [-1.0]])
    assert step.terminated.item()
    assert step.metrics["worth"].item() < 0.01
    assert all(torch.isfinite(value).all() for value in (step.reward, *step.state.values()))
    # Who had gained a thousandfold is ruined all the same.
    rich = begin(env) | {"worth": torch.tensor([1e6]), "weights": torch.tensor([[-1.0]])}
    lost = env.step(rich | {"bar": torch.tensor([2])}, torch.tensor([[-1.0]]), None)  # type: ignore[arg-type]
    assert lost.terminated.item()
