"""The tape: what the threads of a run did from one reading to the next, and the machine beside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from stoker.monitor.phases import PhaseClock
from stoker.monitor.records import GpuSample, HostSample
from stoker.types import Stretch

_LEAST_S = 0.23  # between readings, which are made when the sampler is awake anyway
_KEEP_EVERY_S = 5.0  # many at once cost less than each by itself
_CLOSES_WITHIN_S = 2.0
_SHORTEST_S = 1e-6
_OF_GPU = ("busy", "sm_active", "memory_used_gib", "power_w")
_OF_HOST = ("cpu", "memory_used_gib")

Keep = Callable[[Sequence[Stretch]], None]


class _Reading(NamedTuple):
    at: float
    """On the tape's clock."""
    threads: list[tuple[float, dict[str, float]]]
    """Of each clock, when it started, and the seconds of each phase since."""
    gpu: GpuSample | None
    host: HostSample | None


class Tape:
    """Reads phase clocks for as long as a run trains; threads that train do nothing for it.

    `keep` is given stretches in order, some seconds' worth at a time, by the thread that reads; it
    must not raise. `before_s` is how long the run had trained before.
    """

    def __init__(
        self,
        clocks: Mapping[str, PhaseClock],
        keep: Keep,
        before_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clocks, self._keep, self._clock = clocks, keep, clock
        self._unkept = [self._look(None, None)]
        self._offset = before_s - self._unkept[0].at
        self._lock, self._closed = threading.Lock(), False
        self.due = float("-inf")
        """When to read next, on the sampler's clock; the first time, at once."""

    def read(self, now: float, gpu: GpuSample | None, host: HostSample | None) -> None:
        """Read every clock, beside the newest samples; `now` is on the sampler's clock."""
        self.due = now + _LEAST_S
        with self._lock:
            if self._closed:
                return
            self._unkept.append(self._look(gpu, host))
            if self._unkept[-1].at - self._unkept[0].at >= _KEEP_EVERY_S:
                self._hand_over()

    def close(self) -> bool:
        """Read a last time, and keep what there is; False if somebody is at it and hangs."""
        if not self._lock.acquire(timeout=_CLOSES_WITHIN_S):
            return False
        try:
            if not self._closed:
                self._closed = True
                last = self._unkept[-1]
                self._unkept.append(self._look(last.gpu, last.host))
                self._hand_over()
        finally:
            self._lock.release()
        return True

    def _hand_over(self) -> None:
        taken, self._unkept = self._unkept, self._unkept[-1:]
        self._keep([self._between(before, after) for before, after in pairwise(taken)])

    def _between(self, before: _Reading, after: _Reading) -> Stretch:
        threads = {}
        for name, then, now in zip(self._clocks, before.threads, after.threads, strict=True):
            began = then[1] if then[0] == now[0] else {}  # a clock may have begun anew
            spent = {phase: took - began.get(phase, 0.0) for phase, took in now[1].items()}
            threads[name] = {phase: took for phase, took in spent.items() if took > _SHORTEST_S}
        return Stretch(
            before.at + self._offset,
            after.at - before.at,
            threads,
            _known(after.gpu, _OF_GPU),
            _known(after.host, _OF_HOST),
        )

    def _look(self, gpu: GpuSample | None, host: HostSample | None) -> _Reading:
        now = self._clock()
        threads = [(each.start, each.so_far(now)) for each in self._clocks.values()]
        return _Reading(now, threads, gpu, host)


def _known(sample: GpuSample | HostSample | None, names: Sequence[str]) -> dict[str, float]:
    figures = ((name, getattr(sample, name, None)) for name in names)
    return {name: value for name, value in figures if value is not None}
