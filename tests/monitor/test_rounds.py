"""How often things are read: as often as is wanted, and as seldom as they are dear."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.monitor.rounds import Round, Rounds
from stoker.monitor.sampler import rest_for


def times_read(every_s: float, share: float, cost_s: float, seconds: float) -> int:
    """How often a round that costs `cost_s` a time is read, looked at 100 times a second."""
    spent, times = 0.0, 0

    def read() -> dict[str, float]:
        nonlocal spent, times
        spent, times = spent + cost_s, times + 1
        return {}

    one = Round(("figure",), read, every_s, share)
    for now in range(round(100 * seconds)):
        if one.due <= now / 100:
            one.figures(now / 100, lambda: spent)
    return times


def test_what_costs_little_is_read_on_the_beat() -> None:
    assert times_read(every_s=0.05, share=0.001, cost_s=0.00001, seconds=10) in (200, 201)


def test_what_is_dear_is_read_as_seldom_as_its_share_asks() -> None:
    """2 ms of a thousandth of a core is once in 2 s."""
    times = times_read(every_s=0.05, share=0.001, cost_s=0.002, seconds=1000)
    assert times == pytest.approx(500, rel=0.05)


def test_what_a_round_found_stands_until_it_comes_again_and_then_may_be_unknown() -> None:
    answers: Iterator[dict[str, int]] = iter([{"slow": 1}, {}, {"slow": 3}])
    beats = iter(range(100))
    rounds = Rounds(
        [
            Round(("quick",), lambda: {"quick": next(beats)}, 1.0, 1.0),
            Round(("slow",), lambda: next(answers), 3.0, 1.0),
        ],
        cpu_clock=lambda: 0.0,
    )
    seen = []
    for second in range(9):
        rounds.read(second)
        seen.append((rounds.known["quick"], rounds.known["slow"]))
    assert [quick for quick, _ in seen] == list(range(9))
    assert [slow for _, slow in seen] == [1, 1, 1, None, None, None, 3, 3, 3]


def test_a_reading_that_raises_makes_its_own_figures_unknown_and_no_others() -> None:
    def fail() -> dict[str, int]:
        raise OSError("the driver is gone")

    rounds = Rounds(
        [Round(("a", "b"), fail, 1.0, 1.0), Round(("c",), lambda: {"c": 3}, 1.0, 1.0)],
        cpu_clock=lambda: 0.0,
    )
    rounds.read(0.0)
    assert rounds.known == {"a": None, "b": None, "c": 3}


def test_all_readings_together_stay_below_their_share() -> None:
    assert rest_for(spent_s=0.045, elapsed_s=10.0) == 0.0
    assert rest_for(spent_s=0.09, elapsed_s=10.0) == pytest.approx(8.0)  # 20 s' worth, 2 on credit


def test_the_first_reading_which_is_dearer_does_not_put_off_the_second() -> None:
    """A tenth of a second of a thousandth of a core would be a hundred seconds."""
    spent = iter([0.0, 0.1, 0.2])
    one = Round(("figure",), dict, 1.0, 0.001)
    one.figures(10.0, lambda: next(spent))
    assert one.due == 11.0
    one.figures(11.0, lambda: next(spent))
    assert one.due > 20.0
