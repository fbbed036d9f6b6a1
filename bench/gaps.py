"""How much of a GPU ours uses, and how long it idles between two kernels, by torch's profiler.

The profiler itself costs every kernel a little, so gaps are shorter without it. It begins with a
GPU that has nothing to do; a few iterations later the host is as far ahead as it is throughout a
run, and only the iterations after those count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile

from bench.gpu import GpuWatch
from bench.peers.child import Task
from bench.peers.on_torch import wait
from bench.peers.ours import open_session, train_round
from stoker.train.session import Session

_LEAD = 5  # iterations
_LONG_US = 50.0


class Gaps(NamedTuple):
    """Of some iterations, one after the other."""

    kernels: int
    busy: float  # the share of time with a kernel running
    longest_us: float
    after: str  # the kernel before the longest gap
    long: int  # gaps of more than 50 us
    iteration_us: float


def look_into(task: Task, profiled: int) -> tuple[Gaps, dict[str, float] | None]:
    """Train until warm, watch the GPU for some seconds, then every kernel of some iterations."""
    session = open_session(task)
    try:
        train_round(session)
        train_round(session)
        with GpuWatch() as gpu:
            began = time.monotonic()
            while time.monotonic() - began < task.seconds:
                train_round(session)
            used = gpu.between(began, time.monotonic())
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            _iterate(session, _LEAD + profiled)
            wait()
    finally:
        session.parts.close()
    events = found.events() or []
    spans = [
        Span(event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return summarise(spans, profiled), used


def _iterate(session: Session, iterations: int) -> None:
    """What `loop.run` does besides logging, which waits for the device."""
    parts = session.parts
    for _ in range(iterations):
        parts.learner.anneal(session.remaining)
        parts.lesson(parts.collector.collect())
        parts.collector.publish()


class Span(NamedTuple):
    """A kernel or a copy, in microseconds."""

    start: float
    end: float
    name: str


def summarise(spans: Iterable[Span], iterations: int) -> Gaps:
    """Spans may overlap: time counts once. Before those of `iterations` come some that lead in."""
    ordered = sorted(spans)
    ordered = ordered[len(ordered) * _LEAD // (_LEAD + iterations) :]
    idle = list(_idle(ordered))
    first, last = ordered[0].start, max(span.end for span in ordered)
    longest, after = max(idle, default=(0.0, ""))
    share = 1.0 - sum(gap for gap, _ in idle) / (last - first)
    long = sum(gap > _LONG_US for gap, _ in idle)
    return Gaps(len(ordered), share, longest, after, long, (last - first) / iterations)


def _idle(ordered: list[Span]) -> Iterator[tuple[float, str]]:
    """Each gap, and what ran before it."""
    latest = ordered[0]
    for span in ordered[1:]:
        if span.start > latest.end:
            yield span.start - latest.end, latest.name
        latest = max(latest, span, key=lambda one: one.end)
