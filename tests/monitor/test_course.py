"""How a run will go, by closed forms."""

from __future__ import annotations

import pytest

from stoker.monitor.course import Course, Stretch
from stoker.monitor.verdict import Costs

SLOW = Costs(2e-3, 0.0, 1e-3, 0.0, 1e-3, 0.0, overlapped=False)  # 4 ms a step
QUICK = SLOW._replace(overlapped=True)  # 3 ms: the longer of the two


def test_a_run_makes_whole_rollouts_and_saves_ten_times() -> None:
    course = Course(100, begins_s=5.0, stretches=[Stretch(SLOW)], save_s=0.5)
    assert course.steps(950) == 1000
    assert course.wall_s(950) == pytest.approx(5.0 + 1000 * 4e-3 + 10 * 0.5)
    assert course.sps(950) == pytest.approx(1000 / 14.0)


def test_no_more_checkpoints_than_rollouts() -> None:
    course = Course(100, 0.0, [Stretch(SLOW)], save_s=1.0)
    assert course.wall_s(300) == pytest.approx(300 * 4e-3 + 3)
    assert course.wall_s(1000, checkpoint_every=500) == pytest.approx(4.0 + 2)


def test_stretches_follow_each_other() -> None:
    course = Course(100, 0.0, [Stretch(SLOW, 300), Stretch(QUICK)], save_s=0.0)
    assert course.wall_s(200) == pytest.approx(200 * 4e-3)
    assert course.wall_s(1000) == pytest.approx(300 * 4e-3 + 700 * 3e-3)


def test_what_is_tried_and_found_slower_is_given_up() -> None:
    stretches = [Stretch(QUICK, 300), Stretch(SLOW, 300), Stretch(QUICK)]
    course = Course(100, 0.0, stretches, save_s=0.0)
    assert course.wall_s(1000) == pytest.approx(700 * 3e-3 + 300 * 4e-3)


def test_what_is_not_worth_it_any_more_is_not_begun() -> None:
    stretches = [Stretch(SLOW, 300), Stretch(SLOW, 500, worth_s=20.0), Stretch(QUICK)]
    course = Course(100, 0.0, stretches, save_s=0.0)
    assert course.wall_s(5000) == pytest.approx(5000 * 4e-3)  # 4700 steps take 18.8 s
    assert course.wall_s(10_000) == pytest.approx(800 * 4e-3 + 9200 * 3e-3)
