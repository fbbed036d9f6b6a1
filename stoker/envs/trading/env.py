"""A portfolio as tensors: weights are chosen at the close of a bar and filled at the next open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.envs.trading.bars import Bars
from stoker.envs.trading.csv_files import Source, read_bars
from stoker.envs.trading.market import synthetic_bars
from stoker.envs.trading.tables import FEATURES, Tables, tables_of
from stoker.errors import ConfigError
from stoker.types import Rng, TensorState, TensorStep

_PERCENT = 100.0
_LEAST = 1e-3  # of worth that a move or a cost leaves; who loses more is ruined


class Trading:
    """Holds some assets, long or short, and cash; the reward is the log return in percent.

    `data` is a CSV file, several, a folder of them, or `Bars`; without it a market is made up of
    `assets`, `bars` and `market_seed`. docs/trading.md has the rules and every option.
    """

    metric_names = ("worth", "turnover", "cost", "drawdown")

    def __init__(
        self,
        data: Source | Bars | None = None,
        *,
        assets: int = 4,
        bars: int = 5000,
        market_seed: int = 0,
        split: Literal["train", "test"] = "train",
        train_share: float = 0.8,
        lookback: int = 16,
        episode_bars: int = 128,
        allow_short: bool = True,
        cost: float = 0.001,
        slippage: float = 0.0,
        ruin: float = 0.1,
    ) -> None:
        problems = list(_problems(split, train_share, lookback, episode_bars, cost, slippage, ruin))
        if problems:
            raise ConfigError(problems)
        if data is None:
            data = synthetic_bars(assets, bars, market_seed)
        all_bars = data if isinstance(data, Bars) else read_bars(data)
        part = _part(all_bars, split, train_share, lookback + episode_bars + 1)
        self._starts = len(part) - lookback - episode_bars
        self._lookback, self._longest, self._allow_short = lookback, episode_bars, allow_short
        self._cost, self._slippage, self._ruin = cost, slippage, ruin
        self._assets = len(part.names)
        tables = tables_of(part, lookback)
        self._tables = {tables.gap.device: tables}
        width = (lookback * FEATURES + 1) * self._assets + 1
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (self._assets,), np.float32)

    def initial(self, n: int, rng: Rng) -> TensorState:
        """All in cash, at any bar that has a whole window before it and a whole episode after."""
        drawn = rng.uniform()
        worth = torch.ones_like(drawn)
        return {
            "bar": self._lookback + (drawn * self._starts).long(),
            "age": torch.zeros_like(drawn, dtype=torch.int64),
            "weights": torch.zeros_like(drawn)[:, None].repeat(1, self._assets),
            "worth": worth,
            "peak": worth.clone(),
        }

    def observe(self, state: TensorState) -> Tensor:
        """The last bars, the oldest first, up to the one that just closed; weights; cash."""
        bar, weights = state["bar"], state["weights"]
        back = torch.arange(1 - self._lookback, 1, device=bar.device)
        window = self._on(bar.device).features[bar[:, None] + back]
        return torch.cat((window.flatten(1), weights, 1 - weights.sum(1, keepdim=True)), 1)

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """Prices move to the next open, the portfolio is rebalanced, prices move to the close."""
        tables, bar = self._on(action.device), state["bar"] + 1
        night, held = _moved(state["weights"], tables.gap[bar])
        target = self._target(action)
        traded = (target - held).abs()
        turnover, volume = traded.sum(1), tables.volume[bar - 1]
        share = self._cost * turnover + self._slippage * (traded * (traded / volume).sqrt()).sum(1)
        day, weights = _moved(target, tables.day[bar])

        left = torch.stack((night, 1 - share, day), 1)
        legs = left.clamp(min=_LEAST)
        growth = legs[:, 0] * legs[:, 1] * legs[:, 2]
        worth = state["worth"] * growth
        peak = torch.maximum(state["peak"], worth)
        age = state["age"] + 1
        ruined = (worth < self._ruin) | (left < _LEAST).any(1)
        metrics = {
            "worth": worth,
            "turnover": turnover,
            "cost": state["worth"] * legs[:, 0] * share.clamp(max=1),
            "drawdown": 1 - worth / peak,
        }
        after = {"bar": bar, "age": age, "weights": weights, "worth": worth, "peak": peak}
        reward = _PERCENT * torch.log(growth)
        return TensorStep(after, reward, ruined, age >= self._longest, metrics)

    def _target(self, action: Tensor) -> Tensor:
        """Weights whose sizes sum to 1 at most: all are scaled down alike."""
        wanted = action if self._allow_short else action.clamp(min=0)
        return wanted / wanted.abs().sum(1, keepdim=True).clamp(min=1)

    def _on(self, device: torch.device) -> Tables:
        """The tables on a device; they are moved there once."""
        if device not in self._tables:
            self._tables[device] = next(iter(self._tables.values())).to(device)
        return self._tables[device]


def _moved(weights: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """By what worth [n] is multiplied when prices move, and the weights [n, A] after it."""
    growth = 1 + (weights * returns).sum(1)
    return growth, weights * (1 + returns) / growth[:, None].clamp(min=_LEAST)


def _part(bars: Bars, split: str, train_share: float, least: int) -> Bars:
    """The bars that episodes may see: those of the other part are not there at all."""
    cut = int(len(bars) * train_share)
    which = range(cut) if split == "train" else range(cut, len(bars))
    if len(which) < least:
        raise ConfigError(
            f"The {split} part has {len(which)} of {len(bars)} bars; expected {least} or more, "
            "as lookback + episode_bars + 1. Give more bars, or lower lookback or episode_bars."
        )
    return bars.rows(slice(which.start, which.stop))


def _problems(
    split: str,
    train_share: float,
    lookback: int,
    episode_bars: int,
    cost: float,
    slippage: float,
    ruin: float,
) -> Iterator[str]:
    if split not in ("train", "test"):
        yield f"split is {split!r}; expected train or test."
    for name, count in (("lookback", lookback), ("episode_bars", episode_bars)):
        if not isinstance(count, int) or count < 1:
            yield f"{name} is {count!r}; expected a whole number, 1 or more."
    for name, share in (("train_share", train_share), ("ruin", ruin)):
        if not 0 < share < 1:
            yield f"{name} is {share!r}; expected a number between 0 and 1."
    for name, share in (("cost", cost), ("slippage", slippage)):
        if not 0 <= share <= 0.1:
            yield f"{name} is {share!r}; expected a share of what is traded, from 0 to 0.1."
