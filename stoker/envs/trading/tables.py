"""What an episode reads of bars, computed once and kept as tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker.envs.trading.bars import Bars

FEATURES = 3
_PERCENT = 100.0
_THINNEST = 0.1  # of the usual volume; slippage is no worse where there is less


class Tables(NamedTuple):
    """By bar, float32. Row t follows from the bars up to t; no statistics of others are in it."""

    features: Tensor  # [T, 3 * A], of all assets the return, then the range, then volume's change
    gap: Tensor  # [T, A], the return from the last close to this open
    day: Tensor  # [T, A], the return from this open to this close
    volume: Tensor  # [T, A], over the mean of the last `lookback` bars

    def to(self, device: torch.device) -> Tables:
        return Tables(*(table.to(device) for table in self))


def tables_of(bars: Bars, lookback: int) -> Tables:
    """Row 0 has no bar before it, and counts as one in which nothing changed since."""
    before = np.vstack((bars.close[:1], bars.close[:-1]))
    earlier = np.vstack((bars.volume[:1], bars.volume[:-1]))
    both = bars.volume + earlier
    features = (
        _PERCENT * np.log(bars.close / before),
        _PERCENT * np.log(bars.high / bars.low),
        (bars.volume - earlier) / np.where(both > 0, both, 1),
    )
    return Tables(
        _float32(np.concatenate(features, 1)),
        _float32(bars.open / before - 1),
        _float32(bars.close / bars.open - 1),
        _float32(_relative(bars.volume, lookback)),
    )


def _relative(volume: np.ndarray, lookback: int) -> np.ndarray:
    """Volume over its mean of late, 1 where there was none; the first bars repeat the first."""
    padded = np.vstack((np.repeat(volume[:1], lookback - 1, 0), volume))
    mean = np.lib.stride_tricks.sliding_window_view(padded, lookback, 0).mean(-1)
    return np.where(mean > 0, volume / np.where(mean > 0, mean, 1), 1).clip(_THINNEST)


def _float32(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
