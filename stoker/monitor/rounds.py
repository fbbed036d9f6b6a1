"""Readings that are made again and again, as often as is wanted and as seldom as they are dear."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CpuClock = Callable[[], float]
"""Seconds of processor time that the calling thread has had."""

NEVER = float("-inf")
"""When what was not read yet is due."""
_REMEMBERED = 8  # readings that a running mean of the cost goes back


class Round:
    """Some figures that are read together, at most every `every_s`.

    `share` is the most of a core that reading them may take: where a reading costs more, it is
    made less often.
    """

    def __init__(
        self,
        names: Sequence[str],
        read: Callable[[], Mapping[str, Any]],
        every_s: float,
        share: float,
    ) -> None:
        self._names, self._read = names, read
        self._every_s, self._share = every_s, share
        self._cost_s = 0.0
        self.due = NEVER

    def figures(self, now: float, cpu_clock: CpuClock) -> dict[str, Any]:
        """Every figure by its name; None for those that cannot be read."""
        began = cpu_clock()
        try:
            found = self._read()
        except Exception:  # of a driver or a system: then all of these are unknown
            found = {}
        if self.due > NEVER:  # the first time is dearer
            self._cost_s += (cpu_clock() - began - self._cost_s) / _REMEMBERED
        self.due = next_beat(self.due, now, max(self._every_s, self._cost_s / self._share))
        return {name: found.get(name) for name in self._names}


def next_beat(due: float, now: float, pause: float) -> float:
    """When to read again what was due then: on the beat, unless it was missed."""
    return (now if now - due > pause / 2 else due) + pause


class Rounds:
    """What is known of one thing. What a round found stands until it comes again."""

    def __init__(self, rounds: Sequence[Round], cpu_clock: CpuClock = time.thread_time) -> None:
        self._rounds, self._cpu_clock = rounds, cpu_clock
        self.known: dict[str, Any] = {}
        """Every figure by its name; None is unknown."""
        self.due = NEVER
        """When to read next."""

    def read(self, now: float) -> None:
        """Read what is due by now."""
        for one in self._rounds:
            if one.due <= now:
                self.known |= one.figures(now, self._cpu_clock)
        self.due = min(one.due for one in self._rounds)
