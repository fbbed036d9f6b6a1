"""Bars to recognise, a portfolio in plain Python floats, and a way to run the environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stoker.envs.trading.bars import Bars
from stoker.envs.trading.env import Trading
from stoker.pools.draws import TensorRng, key_of
from stoker.types import TensorState, TensorStep


def bars_of(
    open_: Sequence[Sequence[float]],
    close: Sequence[Sequence[float]],
    volume: Sequence[Sequence[float]] | None = None,
) -> Bars:
    """Rows are bars, columns assets a, b, c."""
    first, last = np.array(open_, float), np.array(close, float)
    return Bars(
        tuple("abcdefgh"[: first.shape[1]]),
        np.arange(len(first), dtype=float),
        first,
        np.maximum(first, last),
        np.minimum(first, last),
        last,
        np.ones_like(first) if volume is None else np.array(volume, float),
    )


def replaced(bars: Bars, **columns: np.ndarray) -> Bars:
    fields = ("names", "time", "open", "high", "low", "close", "volume")
    return Bars(**{name: columns.get(name, getattr(bars, name)) for name in fields})


def rng_at(step: int, ids: Tensor, seed: int = 0) -> TensorRng:
    return TensorRng(key_of(torch.full_like(ids, seed)), ids, torch.tensor(step, device=ids.device))


def begin(env: Trading, n: int = 1, seed: int = 0) -> TensorState:
    return env.initial(n, rng_at(0, torch.arange(n), seed))


def play(env: Trading, actions: Sequence[Sequence[float]]) -> list[TensorStep]:
    """One episode: what came of each action."""
    steps: list[TensorStep] = []
    state = begin(env)
    for number, action in enumerate(actions, 1):
        steps.append(env.step(state, torch.tensor([action]), rng_at(number, torch.arange(1))))
        state = steps[-1].state
    return steps


@dataclass
class Account:
    """The rules once more, in money: units of each asset, and cash."""

    units: list[float]
    cash: float = 1.0

    def worth(self, prices: Sequence[float]) -> float:
        return self.cash + sum(u * p for u, p in zip(self.units, prices, strict=True))

    def weights(self, prices: Sequence[float]) -> list[float]:
        worth = self.worth(prices)
        return [u * p / worth for u, p in zip(self.units, prices, strict=True)]

    def rebalance(
        self,
        action: Sequence[float],
        prices: Sequence[float],
        volumes: Sequence[float],
        cost: float,
        slippage: float,
    ) -> tuple[float, float]:
        """Turnover, and what it cost."""
        gross = sum(abs(wanted) for wanted in action)
        target = [wanted / max(gross, 1.0) for wanted in action]
        before = self.worth(prices)
        turnover = share = 0.0
        for wanted, held, volume in zip(target, self.weights(prices), volumes, strict=True):
            traded = abs(wanted - held)
            turnover += traded
            share += cost * traded + slippage * traded * math.sqrt(traded / volume)
        after = before * (1 - share)
        self.units = [after * w / p for w, p in zip(target, prices, strict=True)]
        self.cash = after * (1 - sum(target))
        return turnover, before * share
