"""The search, with scripted candidates: few are measured, and the best is found."""

from __future__ import annotations

import pytest

from stoker.errors import ConfigError
from stoker.tune.search import Search

TRUE = [10.0, *(20.0 + n for n in range(30)), 90.0, 30.0]
"""Of candidates by number; the best is 31."""


def searched(
    predictions: list[float], true: list[float], kinds: list[str] | None = None
) -> tuple[Search, list[tuple[int, float]]]:
    asked: list[tuple[int, float]] = []

    def score(number: int, seconds: float) -> float:
        asked.append((number, seconds))
        return true[number]

    search = Search(predictions, kinds or ["all"] * len(true))
    search.run(score)
    return search, asked


def test_the_job_as_it_is_is_always_measured() -> None:
    _, asked = searched(TRUE, TRUE)
    assert asked[0] == (0, 1.0)


def test_good_predictions_find_the_best_at_once() -> None:
    search, asked = searched(TRUE, TRUE)
    assert search.ranked()[0].number == 31
    assert len({number for number, _ in asked}) < 9
    assert search.pruned > 20


def test_a_kind_that_is_predicted_too_well_is_found_out() -> None:
    true = [10.0] * 10 + [20.0 + n for n in range(10)]
    boasting = [100.0 + n for n in range(10)] + true[10:]
    search, asked = searched(boasting, true, ["boasting"] * 10 + ["honest"] * 10)
    assert search.ranked()[0].number == 19
    assert sum(number < 10 for number, _ in asked) <= 4


def test_those_that_remain_are_measured_for_longer() -> None:
    # All are within what may be hoped for, so none is pruned.
    true = [100.0 + n / 10 for n in range(20)]
    search, asked = searched(true, true)
    times = [seconds for _, seconds in asked]
    assert times == [1.0] * 8 + [2.0] * 4 + [4.0] * 2
    assert asked[-2:] == [(search.ranked()[0].number, 4.0), (search.ranked()[1].number, 4.0)]


def test_what_is_measured_for_longer_counts_for_more() -> None:
    search = Search([1.0], ["all"])
    search.measured[0] = [(1.0, 10.0), (4.0, 20.0)]
    assert search.ranked()[0].measured == pytest.approx(18.0)


def test_a_candidate_that_cannot_be_is_left_out() -> None:
    def score(number: int, seconds: float) -> float:
        if number == 1:
            raise ConfigError("too large.")
        return 5.0

    search = Search([4.0, 9.0, 5.0], ["a", "b", "c"])
    search.run(score)
    assert search.failed == {1: "too large."}
    assert {trial.number for trial in search.ranked()} == {0, 2}


def test_an_interruption_leaves_the_best_so_far() -> None:
    def score(number: int, seconds: float) -> float:
        if len(search.measured) == 2:
            raise KeyboardInterrupt
        return TRUE[number]

    search = Search(TRUE, ["all"] * len(TRUE))
    with pytest.raises(KeyboardInterrupt):
        search.run(score)
    assert search.ranked()[0].number == 31
