"""Prioritised replay where theory says that it wins."""

from __future__ import annotations

from statistics import median

from bench.chain import updates_needed


def test_priorities_find_the_step_that_pays_sooner() -> None:
    """Of the 126 steps of 64 episodes one has a reward; in updates, so no clock is asked."""
    prioritised, alike = (
        median(updates_needed(per, length=6, seed=seed) for seed in range(3))
        for per in (True, False)
    )
    assert prioritised < 1000
    assert 2 * prioritised < alike
