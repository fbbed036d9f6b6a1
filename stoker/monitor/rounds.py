"""Readings that are made again and again, as often as is wanted and as seldom as they are dear."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CpuClock = Callable[[], float]
"""Seconds of processor time that the calling thread has had."""

_NEVER = float("-inf")
_REMEMBERED = 8  # readings that a running mean of the cost goes back


class Round:
    """Some figures that are read together, at most every `every_s`.

    `share` is the most of a core that reading them may take: where a reading costs more, it is
    made less often. Without it the cost is not measured, which would be a part of it.
    """

    def __init__(
        self,
        names: Sequence[str],
        read: Callable[[], Mapping[str, Any]],
        every_s: float,
        share: float | None = None,
    ) -> None:
        self._names, self._read = names, read
        self._every_s, self._share = every_s, share
        self._cost_s = 0.0
        self.due = _NEVER

    def figures(self, now: float, cpu_clock: CpuClock) -> dict[str, Any]:
        """Every figure by its name; None for those that cannot be read."""
        share = self._share if self.due > _NEVER else None  # the first time is dearer
        began = cpu_clock() if share is not None else 0.0
        try:
            found = self._read()
        except Exception:  # of a driver or a system: then all of these are unknown
            found = {}
        pause = self._every_s
        if share is not None:
            self._cost_s += (cpu_clock() - began - self._cost_s) / _REMEMBERED
            pause = max(pause, self._cost_s / share)
        missed = now - self.due > pause / 2
        self.due = (now if missed else self.due) + pause  # else on the beat
        return {name: found.get(name) for name in self._names}


class Rounds:
    """What is known of one thing: the first round sets the beat, others keep to it when due.

    What a round found stands until it comes again.
    """

    def __init__(self, rounds: Sequence[Round], cpu_clock: CpuClock = time.thread_time) -> None:
        self._beat, *self._others = rounds
        self._others_due = _NEVER
        self._cpu_clock = cpu_clock
        self.known: dict[str, Any] = {}
        """Every figure by its name; None is unknown."""
        self.due = _NEVER
        """When to read next."""

    def read(self, now: float) -> None:
        """Read what is due by now."""
        self.known |= self._beat.figures(now, self._cpu_clock)
        self.due = self._beat.due
        if self._others_due <= now:
            for one in self._others:
                if one.due <= now:
                    self.known |= one.figures(now, self._cpu_clock)
            self._others_due = min((one.due for one in self._others), default=float("inf"))
