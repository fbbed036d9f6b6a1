"""A made-up market with something in it to be learnt, from a seed alone.

The logarithm of an asset's price moves by the market's move times a beta, and by one of its own.
The deviation of each move wanders around 1 % a bar, so calm and turbulent times cluster. What a
move is expected to be is a trend, up or down, of `TREND` deviations, that dies out slowly: what
went up of late goes on a little more often than not. Volume grows with volatility.
"""

from __future__ import annotations

import itertools

import numpy as np

from stoker.envs.trading.bars import Bars
from stoker.errors import ConfigError

TREND = 0.2
"""Of what can be expected of the next move: its deviation, in deviations of the move itself."""
_TREND_KEPT, _CALM_KEPT = 0.97, 0.98  # from one bar to the next
_DEVIATION, _UNREST, _DRIFT = 0.01, 0.4, 0.0002
_GAP, _WICK = 0.25, 0.4  # between close and open, and beyond both, in deviations of a move
_BAR_S = 86_400.0


def synthetic_bars(assets: int = 4, bars: int = 5000, seed: int = 0) -> Bars:
    """Daily bars of assets that start at a price of 100; NumPy alone draws them."""
    problems = [
        f"{name} is {value!r}; expected a whole number, {least} or more."
        for name, value, least in (("assets", assets, 1), ("bars", bars, 2), ("seed", seed, 0))
        if not isinstance(value, int) or value < least
    ]
    if problems:
        raise ConfigError(problems)
    rng = np.random.default_rng(seed)
    shape = (bars, assets + 1)  # the market is the first column
    trend = TREND * _wandering(rng.standard_normal(shape), _TREND_KEPT)
    unrest = _UNREST * _wandering(rng.standard_normal(shape), _CALM_KEPT)
    deviation = _DEVIATION * np.exp(unrest)
    moves = deviation * (trend + rng.standard_normal(shape)) / np.sqrt(2)
    beta = rng.uniform(0.5, 1.5, assets)
    move = _DRIFT + beta * moves[:, :1] + moves[:, 1:]

    spread = deviation[:, 1:]
    gap = _GAP * spread * rng.standard_normal((bars, assets))
    close = 100 * np.exp(np.cumsum(move, 0))
    open_ = np.vstack((np.full((1, assets), 100.0), close[:-1])) * np.exp(gap)
    above, below = np.exp(_WICK * spread * np.abs(rng.standard_normal((2, bars, assets))))
    usual = 10 ** rng.uniform(4, 6, assets)
    noise = 0.3 * rng.standard_normal((bars, assets))
    return Bars(
        tuple(f"asset{number}" for number in range(assets)),
        _BAR_S * np.arange(bars),
        open_,
        np.maximum(open_, close) * above,
        np.minimum(open_, close) / below,
        close,
        usual * np.exp(unrest[:, 1:] + noise),
    )


def _wandering(noise: np.ndarray, kept: float) -> np.ndarray:
    """Rows that keep a share of the row before, of mean 0 and deviation 1."""
    rows = noise.copy()
    for earlier, row in itertools.pairwise(rows):
        row *= np.sqrt(1 - kept**2)
        row += kept * earlier
    return rows
