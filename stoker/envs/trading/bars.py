"""Bars of several assets at the same times, and every check of them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.errors import ConfigError

PRICES = ("open", "high", "low", "close")
COLUMNS = ("time", *PRICES, "volume")


@dataclass(frozen=True, eq=False)
class Bars:
    """T bars of A assets, the oldest first. Whoever has one knows that its numbers make sense."""

    names: tuple[str, ...]  # A
    time: np.ndarray  # float64 [T], ascending
    open: np.ndarray  # float64 [T, A], above 0, likewise the next three
    high: np.ndarray
    low: np.ndarray
    close: np.ndarray
    volume: np.ndarray  # float64 [T, A], 0 or more

    def __post_init__(self) -> None:
        problems = list(_misshapen(self)) or list(_wrong(self))
        if problems:
            raise ConfigError(problems)

    def __len__(self) -> int:
        return len(self.time)

    def rows(self, which: slice | np.ndarray) -> Bars:
        """Some of the bars, of all assets."""
        return Bars(self.names, *(getattr(self, column)[which] for column in COLUMNS))


def joined(series: Sequence[Bars]) -> Bars:
    """All assets of `series`, at the times that each has; a warning says what was left out."""
    common = functools.reduce(np.intersect1d, [bars.time for bars in series])
    if not len(common):
        spans = ", ".join(f"{_names(bars)} from {bars.time[0]:g}" for bars in series)
        raise ConfigError(
            f"No time is common to all assets ({spans}); expected bars at the same times. Give "
            "assets whose times overlap and are written alike."
        )
    left_out = [
        f"{len(bars) - len(common)} of {len(bars)} bars of {_names(bars)}"
        for bars in series
        if len(bars) > len(common)
    ]
    if left_out:
        warnings.warn(
            f"Assets have different times: {len(common)} bars are common to all and are kept; left "
            f"out are {', '.join(left_out)}.",
            stacklevel=3,
        )
    kept = [bars.rows(np.isin(bars.time, common)) for bars in series]
    names = tuple(name for bars in kept for name in bars.names)
    tables = (np.concatenate([getattr(b, column) for b in kept], 1) for column in COLUMNS[1:])
    return Bars(names, common, *tables)


def _names(bars: Bars) -> str:
    return ", ".join(bars.names)


def _misshapen(bars: Bars) -> Iterator[str]:
    if bars.time.ndim != 1 or not len(bars.time) or not bars.names:
        yield (
            f"There are {len(bars.names)} assets and the times have the shape {bars.time.shape}; "
            "expected one asset and one bar or more. Give times as a vector, oldest first."
        )
        return
    wanted = (len(bars.time), len(bars.names))
    for column in COLUMNS[1:]:
        found = getattr(bars, column).shape
        if found != wanted:
            yield (
                f"{column} has the shape {found}; expected {wanted}, a row for each time and a "
                "column for each name. Give as many as there are of both."
            )


def _wrong(bars: Bars) -> Iterator[str]:
    """What is wrong with the numbers: for each asset and kind the first, and how many there are."""
    for name in sorted({name for name in bars.names if bars.names.count(name) > 1}):
        yield (
            f"{bars.names.count(name)} assets are named {name}; expected one of each. Rename the "
            "files, or give each asset once."
        )
    unordered = ~np.isfinite(bars.time)
    unordered[1:] |= ~(bars.time[1:] > bars.time[:-1])
    if unordered.any():
        yield (
            f"{_names(bars)}: the time of {_first(unordered)} is not after the one before; "
            "expected ascending times, each once. Sort the bars and drop duplicates."
        )
    for asset, name in enumerate(bars.names):
        for column in (*PRICES, "volume"):
            values = getattr(bars, column)[:, asset]
            wanted = "0 or more" if column == "volume" else "above 0"
            bad = ~np.isfinite(values) | (values < 0) | ((values == 0) & (column != "volume"))
            if bad.any():
                yield (
                    f"{name}: {column} is {values[bad][0]:g} at {_first(bad)}; expected a finite "
                    f"number, {wanted}. Correct these bars or leave them out."
                )
        crossed = bars.high[:, asset] < bars.low[:, asset]
        if crossed.any():
            yield (
                f"{name}: high is {bars.high[crossed, asset][0]:g}, below low "
                f"({bars.low[crossed, asset][0]:g}), at {_first(crossed)}; expected high to be the "
                "greater. See whether the columns are swapped."
            )


def _first(bad: np.ndarray) -> str:
    """Where the first of some bars is, counted from 1, and how many there are besides."""
    more = int(bad.sum()) - 1
    return f"bar {int(bad.argmax()) + 1} of {len(bad)}" + (f" (and {more} more)" if more else "")
