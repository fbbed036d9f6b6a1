"""The phase clock: what the training thread was doing, and for how long."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Seconds by phase on the host's clock, since the start and since the last `lap`.

    Phases must not nest: their sum with "other" is the wall clock. A phase that only launches work
    on a GPU ends before that work does; what waits for it pays. So every phase that is timed
    apart from others either waits for the device or is followed by one that does.
    """

    def __init__(self) -> None:
        self.total: defaultdict[str, float] = defaultdict(float)
        self._lap: defaultdict[str, float] = defaultdict(float)
        self.restart()

    def restart(self) -> None:
        """Forget what was timed, and begin now."""
        self.total.clear()
        self._lap.clear()
        self._lap_start = self.start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.total[name] += took
            self._lap[name] += took

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def lap(self) -> tuple[float, dict[str, float]]:
        """Seconds since the last lap, and the share of each phase in them; shares sum to 1."""
        now = time.perf_counter()
        wall = max(now - self._lap_start, 1e-9)
        shares = _shares(self._lap, wall)
        self._lap_start = now
        self._lap.clear()
        return wall, shares

    def shares(self) -> dict[str, float]:
        """The share of each phase since the start; they sum to 1."""
        return _shares(self.total, max(self.elapsed(), 1e-9))


def _shares(seconds: dict[str, float], wall: float) -> dict[str, float]:
    shares = {name: took / wall for name, took in seconds.items()}
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    return shares
