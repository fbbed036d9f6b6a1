"""The phase clock: what a thread was doing, and for how long."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import AbstractContextManager


class PhaseClock:
    """Seconds by phase on the host's clock, since the start and since the last `lap`.

    One thread's phases; another may read them.

    Where phases nest the innermost counts: their sum with "other" is the wall clock. A phase that
    only launches work on a GPU ends before that work does; what waits for it pays. So every phase
    that is timed apart from others either waits for the device or is followed by one that does.
    """

    def __init__(self) -> None:
        self.total: defaultdict[str, float] = defaultdict(float)
        self._now: str | None = None
        self.restart()

    def restart(self) -> None:
        """Forget what was timed, and begin now."""
        self.total.clear()
        self._before_lap: dict[str, float] = {}
        self._since = self._lap_start = self.start = time.perf_counter()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """As long as it is entered, time counts as that phase's."""
        return _Phase(self, name)

    def turn_to(self, name: str | None) -> str | None:
        """Count the phase so far, and begin another; which it was."""
        now, before = time.perf_counter(), self._now
        if before is not None:
            self.total[before] += now - self._since
        self._now, self._since = name, now
        return before

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def so_far(self, now: float) -> dict[str, float]:
        """Seconds of each phase since the start, by `now` of `time.perf_counter`."""
        total, running = dict(self.total), self._now
        if running is not None:  # as far as it has come
            total[running] = total.get(running, 0.0) + max(0.0, now - self._since)
        return total

    def lap(self) -> tuple[float, dict[str, float]]:
        """Seconds since the last lap, and the share of each phase in them; shares sum to 1."""
        now = time.perf_counter()
        total, wall = self.so_far(now), max(now - self._lap_start, 1e-9)
        before = self._before_lap
        spent = {k: took - before.get(k, 0.0) for k, took in total.items() if took != before.get(k)}
        self._lap_start, self._before_lap = now, total
        return wall, _shares(spent, wall)

    def shares(self) -> dict[str, float]:
        """The share of each phase since the start; they sum to 1."""
        return _shares(dict(self.total), max(self.elapsed(), 1e-9))


class _Phase:
    """A phase to enter once. A generator for a context would take more than twice the time."""

    __slots__ = ("_before", "_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._before = self._clock.turn_to(self._name)

    def __exit__(self, *error: object) -> None:
        self._clock.turn_to(self._before)


def _shares(seconds: dict[str, float], wall: float) -> dict[str, float]:
    shares = {name: took / wall for name, took in seconds.items()}
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    return shares
