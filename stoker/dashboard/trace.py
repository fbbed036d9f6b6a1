"""Runs as a trace for Perfetto or chrome://tracing: a track a thread, and counters beside them.

Inside a stretch of the timeline the lengths of phases are known and their order is not: they stand
one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.runs.reader import Run, Stretch, number_of

_TOUCHING_S = 0.002
_GPU = {
    "busy": ("GPU busy, %", 100.0),
    "sm_active": ("SM active, %", 100.0),
    "memory_used_gib": ("GPU memory, GiB", 1.0),
    "power_w": ("GPU power, W", 1.0),
}
_HOST = {"cpu": ("CPU, %", 100.0), "memory_used_gib": ("memory, GiB", 1.0)}
_LOGGED = {"rollout/ep_rew_mean": "reward", "time/fps": "steps/s"}


def trace(runs: Sequence[Run]) -> dict[str, Any]:
    """Trace Event JSON; each run is a process."""
    events = [event for number, run in enumerate(runs, 1) for event in _events(run, number)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(run: Run, process: int) -> Iterator[dict[str, Any]]:
    yield _name("process_name", process, 0, run.summary.name)
    threads = dict.fromkeys(name for each in run.timeline for name in each.threads)
    for number, thread in enumerate(threads, 1):
        yield _name("thread_name", process, number, thread)
        for phase, began, ended in spans(run.timeline, thread):
            length = _micros(ended) - _micros(began)
            yield {
                "name": phase,
                "cat": "phase",
                "ph": "X",
                "ts": _micros(began),
                "dur": length,
                "pid": process,
                "tid": number,
            }
    for each in run.timeline:
        for figures, counters in ((each.gpu, _GPU), (each.host, _HOST)):
            yield from _counters(figures, counters, each.at, process)
    for line in run.metrics:
        at = number_of(line, "wall_s")
        for name, shown in _LOGGED.items():
            value = number_of(line, name)
            if at is not None and value is not None:
                yield _counter(shown, value, at, process)


def spans(timeline: Sequence[Stretch], thread: str) -> Iterator[tuple[str, float, float]]:
    """Phases with their beginnings and ends; one that goes on in the next stretch is one."""
    open_phase, began, ended = "", 0.0, 0.0
    for each in timeline:
        at = each.at
        for phase, seconds in each.threads.get(thread, {}).items():
            if phase == open_phase and at - ended < _TOUCHING_S:
                ended = at + seconds
            else:
                if open_phase:
                    yield open_phase, began, ended
                open_phase, began, ended = phase, at, at + seconds
            at += seconds
    if open_phase:
        yield open_phase, began, ended


def _counters(
    figures: Mapping[str, float],
    counters: Mapping[str, tuple[str, float]],
    at: float,
    process: int,
) -> Iterator[dict[str, Any]]:
    for name, (shown, scale) in counters.items():
        if name in figures:
            yield _counter(shown, scale * figures[name], at, process)


def _counter(name: str, value: float, at: float, process: int) -> dict[str, Any]:
    event = {"name": name, "ph": "C", "ts": _micros(at), "pid": process}
    return {**event, "args": {name: round(value, 3)}}


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _micros(seconds: float) -> int:
    return round(1e6 * seconds)
