"""Steps over time: a straight line between what was seen, and all jobs together."""

from __future__ import annotations

import pytest

from stoker.jobs.track import Track, together


def track(*points: tuple[float, int]) -> Track:
    made = Track()
    for at, steps in points:
        made.note(at, steps)
    return made


def test_steps_lie_on_a_line_and_stay_where_they_end() -> None:
    seen = track((10.0, 100), (20.0, 300))
    assert [seen.at(when) for when in (0.0, 10.0, 15.0, 20.0, 99.0)] == [100, 100, 200, 300, 300]
    assert (seen.began, seen.ended) == (10.0, 20.0)


def test_only_new_steps_count() -> None:
    seen = track((5.0, 0), (10.0, 100), (20.0, 200), (30.0, 200))
    assert (seen.began, seen.ended) == (10.0, 20.0)


def test_together_adds_up_and_going_back_takes_away() -> None:
    steady = track((0.0, 1), (100.0, 10_001))
    killed = track((0.0, 1), (10.0, 1001), (20.0, 501), (30.0, 1501))
    late = track((15.0, 100), (30.0, 400))
    assert together([steady], 0.0, 30.0) == pytest.approx(100.0)
    assert together([steady, killed, late], 0.0, 30.0) == pytest.approx(100.0 + 50.0 + 10.0)


@pytest.mark.parametrize(("began", "ended"), [(None, 9.0), (0.0, None), (5.0, 6.0), (9.0, 0.0)])
def test_too_short_a_time_is_unknown(began: float | None, ended: float | None) -> None:
    assert together([track((0.0, 1), (9.0, 100))], began, ended) is None
