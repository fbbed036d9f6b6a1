"""From rehearsed iterations to a run: in step at first, overlapped or in kernels after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stoker.monitor.course import Course, Stretch
from stoker.monitor.verdict import Costs, Job, costs_of
from stoker.train.overlap import IN_STEP_AT_FIRST, LEAST_GAIN, OverlapTrial
from stoker.train.swap import AFTER_S, SETTLED, WORTH_S, Swap
from stoker.tune.rehearsal import Rehearsal
from stoker.tune.shorten import Shortened

_MODE_S = 12.0  # at most, for each way of collecting
_BUILD_S = 90.0  # at most, while kernels are built


class Composed(NamedTuple):
    """A run as it will go."""

    course: Course
    steady: Job
    """What was measured of the way in which it will go on to its end."""
    factor: int
    """How many times as short as the job's the rehearsed iterations were."""


def composed(
    rehearsal: Rehearsal, short: Shortened, tell: Callable[[str], None] = lambda _: None
) -> Composed:
    """Rehearse each way in which such a run goes, and put a run together of them."""
    config = rehearsal.resolved
    batch = config.total_batch * short.factor * config.run.population
    tell("collecting and learning")
    begins_s = rehearsal.warm_up()
    first = rehearsal.measure(_MODE_S).job
    costs = _scaled(first, short, config.run.log_every)
    stretches, steady = [Stretch(costs)], first
    if isinstance(rehearsal.trial, OverlapTrial):
        stretches, steady = _with_trial(rehearsal, short, first, costs, batch, tell)
    elif isinstance(rehearsal.trial, Swap):
        stretches, steady = _with_kernels(rehearsal, short, first, costs, batch, tell)
    return Composed(Course(batch, begins_s, stretches, rehearsal.save_s()), steady, short.factor)


def _with_trial(
    rehearsal: Rehearsal,
    short: Shortened,
    first: Job,
    in_step: Costs,
    batch: int,
    tell: Callable[[str], None],
) -> tuple[list[Stretch], Job]:
    """As `train.overlap.OverlapTrial` decides."""
    head = IN_STEP_AT_FIRST * batch
    if in_step.total < LEAST_GAIN * in_step._replace(overlapped=True).total:
        return [Stretch(in_step)], first
    tell("collecting while learning")
    rehearsal.overlap()
    second = rehearsal.measure(_MODE_S).job
    overlapped = _scaled(second, short, rehearsal.resolved.run.log_every)
    tried = [Stretch(in_step, head), Stretch(overlapped, head)]
    if in_step.total < LEAST_GAIN * overlapped.total:
        return [*tried, Stretch(in_step)], first._replace(overlap_tried=True)
    return tried, second


def _with_kernels(
    rehearsal: Rehearsal,
    short: Shortened,
    first: Job,
    before: Costs,
    batch: int,
    tell: Callable[[str], None],
) -> tuple[list[Stretch], Job]:
    """As `train.swap.Swap` does: kernels are built behind a run that lasts, and take over."""
    tell("building kernels behind it")
    building, swap = rehearsal.until_taken_over(_BUILD_S), rehearsal.trial
    if rehearsal.parts.fused is None:
        return [Stretch(before)], first
    assert isinstance(swap, Swap)
    assert swap.built is not None
    tell("collecting and learning in kernels")
    rehearsal.warm_up()
    last = rehearsal.measure(_MODE_S).job
    slower = building.job.wall_s / building.job.steps / before.total
    # The run will find in the cache what was built here.
    sooner = min(1.0, swap.seconds_from_cache() / (swap.built.seconds or 1.0))
    meanwhile = before._replace(
        environments=before.environments * slower, learning=before.learning * slower
    )
    settling = max(SETTLED * batch, AFTER_S / before.total)
    return [
        Stretch(before, settling),
        Stretch(meanwhile, sooner * building.job.steps, WORTH_S),
        Stretch(_scaled(last, short, rehearsal.resolved.run.log_every)),
    ], last


def _scaled(job: Job, short: Shortened, log_every: int) -> Costs:
    return short.costs(costs_of(job), log_every)
