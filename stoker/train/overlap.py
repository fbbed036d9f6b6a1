"""Whether overlapping pays: measured in step first, then decided, and said."""

from __future__ import annotations

from typing import NamedTuple

from stoker.collect.overlapped import OverlappedCollector
from stoker.monitor.phases import PhaseClock

COLLECTING = ("inference", "env", "store")
LEARNING = ("update",)
"""Phases whose sums are the time that collecting and learning take."""

LEAST_GAIN = 1.05
"""What overlapping must bring to be kept."""
IN_STEP_AT_FIRST = 3
"""Iterations before overlapping is tried, and as many until it is looked back on."""


class Decision(NamedTuple):
    """Something Stoker chose, and why."""

    what: str
    chosen: str
    why: str


class OverlapTrial:
    """Measures two iterations in step, then two overlapped, and keeps what is quicker.

    Each pair comes after one iteration that does not count: it warms up, or changes over.
    """

    def __init__(
        self, collector: OverlappedCollector, clock: PhaseClock, collect_clock: PhaseClock
    ) -> None:
        self._collector, self._clock, self._collect_clock = collector, clock, collect_clock
        self._iterations = 0
        self._before = (0.0, 0.0, 0.0)
        self._in_step_s = 0.0
        self.went_back = False
        """Whether overlapping was tried and found to be no quicker."""

    def consider(self) -> Decision | None:
        """Called after every iteration; a decision when there is one."""
        self._iterations += 1
        if self._iterations in (1, IN_STEP_AT_FIRST + 1):
            self._before = self._spent()
        if self._iterations == IN_STEP_AT_FIRST:
            return self._predict()
        if self._iterations == 2 * IN_STEP_AT_FIRST and self._collector.ahead:
            return self._look_back()
        return None

    def begin_anew(self) -> None:
        """The clocks begin anew: so does the pair of iterations that is being measured."""
        if self._iterations < 2 * IN_STEP_AT_FIRST:
            self._iterations -= self._iterations % IN_STEP_AT_FIRST

    def close(self) -> None:
        """Nothing runs between two iterations."""

    def _predict(self) -> Decision:
        collect, learn, self._in_step_s = self._an_iteration()
        gain = (collect + learn) / max(collect, learn, 1e-9)
        found = f"collecting takes {collect:.3g} s and learning {learn:.3g} s an iteration"
        if gain < LEAST_GAIN:
            return Decision("collect", "in step", f"{found}, so overlapping would bring little")
        self._collector.ahead = True
        return Decision("collect", "overlapped", f"{found}: at best {gain:.2f} times as fast")

    def _look_back(self) -> Decision:
        _, _, overlapped = self._an_iteration()
        gain = self._in_step_s / max(overlapped, 1e-9)
        found = f"an iteration took {self._in_step_s:.3g} s in step, {overlapped:.3g} s overlapped"
        self._collector.ahead = gain >= LEAST_GAIN
        self.went_back = not self._collector.ahead
        if self._collector.ahead:
            return Decision("collect", "overlapped", f"{found}: {gain:.2f} times as fast")
        return Decision("collect", "in step", f"{found}, so it goes back")

    def _an_iteration(self) -> tuple[float, ...]:
        """Seconds of collecting, of learning and in all, of each of the last two iterations."""
        return tuple((now - b) / 2 for now, b in zip(self._spent(), self._before, strict=True))

    def _spent(self) -> tuple[float, float, float]:
        collect = sum(self._collect_clock.total[phase] for phase in COLLECTING)
        learn = sum(self._clock.total[phase] for phase in LEARNING)
        return collect, learn, learn + self._clock.total["wait"]
