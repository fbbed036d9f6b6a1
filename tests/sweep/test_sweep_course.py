"""The reward at every tenth of a run, from the lines that it logs."""

from __future__ import annotations

from stoker.sweep.course import REWARD, Course, Horizon


def line(at: float, reward: float | None, steps: int = 0) -> dict[str, float]:
    return {"wall_s": at, "env_steps": steps, **({} if reward is None else {REWARD: reward})}


def test_a_mark_is_the_last_reward_up_to_it() -> None:
    course = Course(Horizon("wall_s", 10.0))
    course.note(line(0.5, None))
    course.note(line(1.0, 1.0))  # on the first mark, to which it belongs
    course.note(line(2.5, 2.5))
    assert course.marks == [1.0, 1.0]
    course.note(line(5.2, 5.2))
    assert course.marks == [1.0, 1.0, 2.5, 2.5, 2.5]
    assert not course.over


def test_what_comes_after_the_budget_does_not_count() -> None:
    course = Course(Horizon("wall_s", 10.0))
    course.note(line(9.0, 9.0, steps=90))
    course.note(line(10.1, 500.0, steps=101))
    assert course.over
    assert (course.reward, course.env_steps, course.share) == (9.0, 90, 1.0)
    assert course.marks[-1] == 9.0


def test_a_run_without_an_episode_has_no_reward() -> None:
    course = Course(Horizon("wall_s", 1.0))
    course.note(line(2.0, 7.0))
    assert course.over
    assert course.marks == [None] * 10
    assert course.reward is None


def test_the_last_rollout_counts_where_steps_do() -> None:
    """A run of 100 steps makes whole rollouts of 64."""
    course = Course(Horizon("env_steps", 100))
    course.note(line(1.0, 1.0, steps=64))
    assert course.marks == [None] * 6  # the first episodes ended after the sixth
    course.note(line(2.0, 2.0, steps=128))
    assert course.reward == course.marks[-1] == 2.0
    assert course.over
