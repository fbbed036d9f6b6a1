"""Curves of several seeds on one grid, and the mean and interval of each point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.seeds import difference, mean_of

POINTS = 25
Curves = Sequence[Sequence[Sequence[float]]]
"""Of each seed: points of steps, seconds and reward."""
_STEPS, _SECONDS, _REWARD = range(3)


def over_steps(ours: Curves, theirs: Curves) -> dict[str, Any]:
    """At even steps, up to where every seed of either side has come."""
    return _aligned(ours, theirs, _STEPS, min(_ends(ours, _STEPS) + _ends(theirs, _STEPS)))


def over_seconds(ours: Curves, theirs: Curves) -> dict[str, Any]:
    """At even times, up to the end of the slowest; who is done by then keeps its last reward."""
    return _aligned(ours, theirs, _SECONDS, max(_ends(ours, _SECONDS) + _ends(theirs, _SECONDS)))


def _ends(curves: Curves, axis: int) -> list[float]:
    return [curve[-1][axis] for curve in curves]


def _aligned(ours: Curves, theirs: Curves, axis: int, end: float) -> dict[str, Any]:
    grid = [end * (point + 1) / POINTS for point in range(POINTS)]
    at = {side: _at(curves, axis, grid) for side, curves in (("ours", ours), ("peer", theirs))}
    gaps = [difference(*values) for values in zip(at["ours"], at["peer"], strict=True)]
    return {
        "at": [round(x, 1) for x in grid],
        **{side: _bands(values) for side, values in at.items()},
        "apart_at": [round(x, 1) for x, gap in zip(grid, gaps, strict=True) if gap.leaves_out_zero],
    }


def _at(curves: Curves, axis: int, grid: Sequence[float]) -> list[list[float]]:
    """Rewards on the grid, a list of all seeds' a point; outside of a curve, its nearest end."""
    columns = [np.asarray(curve, float).T for curve in curves]
    rows = [np.interp(grid, column[axis], column[_REWARD]) for column in columns]
    return np.array(rows).T.tolist()


def _bands(values: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    means = [mean_of(value) for value in values]
    return {
        "mean": [each.mean for each in means],
        "low": [each.low for each in means],
        "high": [each.high for each in means],
    }
