"""Means over seeds, their intervals, and curves on a grid."""

from __future__ import annotations

import math

import pytest

from bench import grid
from bench.seeds import _t_95, difference, mean_of


def test_students_distribution_where_it_has_a_closed_form() -> None:
    assert _t_95(1) == pytest.approx(math.tan(math.pi * 0.475), abs=1e-3)
    assert _t_95(2) == pytest.approx(0.95 / math.sqrt(2 * 0.975 * 0.025), abs=1e-3)
    assert _t_95(2.9) == _t_95(2), "the interval is rather too wide"


def test_interval_of_a_mean() -> None:
    assert mean_of([0.0, 2.0]) == (1.0, round(1 - 12.706, 2), round(1 + 12.706, 2))
    assert mean_of([7.0, 7.0, 7.0]) == (7.0, 7.0, 7.0)


def test_welchs_interval_has_the_freedom_of_both_sides_where_they_vary_alike() -> None:
    """Five seeds each, of one variance: 8 degrees of freedom, as without Welch."""
    ours, theirs = [11.0, 12.0, 13.0, 14.0, 15.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    half = 2.306 * math.sqrt(2 * 2.5 / 5)
    assert difference(ours, theirs) == (10.0, round(10 - half, 2), round(10 + half, 2))


def test_welchs_interval_has_the_freedom_of_one_where_the_other_does_not_vary() -> None:
    half = 4.303 * 1.0 / math.sqrt(3)
    assert difference([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]).high == round(-3 + half, 2)
    assert difference([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0, 0.0)
    assert difference([2.0, 2.0], [1.0, 1.0]).leaves_out_zero


def straight(steps: float, seconds: float) -> list[list[float]]:
    """A curve whose reward is its steps."""
    return [[0.0, 0.0, 0.0], [steps / 2, seconds / 2, steps / 2], [steps, seconds, steps]]


def test_curves_are_aligned_by_steps_up_to_the_shortest() -> None:
    found = grid.over_steps([straight(100, 1.0)] * 2, [straight(100, 4.0), straight(104, 4.0)])
    assert found["at"] == [4.0 * (i + 1) for i in range(25)]
    assert found["ours"]["mean"] == pytest.approx(found["at"])
    assert found["peer"]["low"] == pytest.approx(found["at"])
    assert found["apart_at"] == []


def test_curves_are_aligned_by_time_and_who_is_done_keeps_the_last_reward() -> None:
    found = grid.over_seconds([straight(100, 25.0)] * 2, [straight(100, 50.0)] * 2)
    assert found["at"] == [2.0 * (i + 1) for i in range(25)]
    assert found["ours"]["mean"][11:] == [96.0] + [100.0] * 13
    assert found["peer"]["mean"] == pytest.approx([4.0 * (i + 1) for i in range(25)])
    assert found["apart_at"] == found["at"][:-1]
