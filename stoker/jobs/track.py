"""Environment steps over time, of one job and of several together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

WARM_UP_S = 3.0
"""Seconds of training that do not count: kernels are built, and ways of collecting tried."""
SHORTEST_S = 2.0
"""What is measured for less says nothing."""


class Track:
    """How many steps a job had made, and when. Going back to a checkpoint takes steps away."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._steps: list[int] = []

    def note(self, at: float, steps: int) -> None:
        """That there were so many steps at that time; only what is new counts."""
        if steps and (not self._steps or steps != self._steps[-1]):
            self._times.append(at)
            self._steps.append(steps)

    @property
    def began(self) -> float | None:
        """When the first steps were seen; None before."""
        return self._times[0] if self._times else None

    @property
    def ended(self) -> float | None:
        """When the last new steps were seen."""
        return self._times[-1] if self._times else None

    def at(self, when: float) -> float:
        """Steps at that time, on a straight line between what was seen."""
        if not self._times:
            return 0.0
        right = bisect_right(self._times, when)
        if right == 0 or right == len(self._times):
            return self._steps[min(right, len(self._steps) - 1)]
        left = right - 1
        share = (when - self._times[left]) / (self._times[right] - self._times[left])
        return self._steps[left] + share * (self._steps[right] - self._steps[left])


def together(tracks: Sequence[Track], began: float | None, ended: float | None) -> float | None:
    """Steps a second of all, between two moments; None where that is too short to tell."""
    if began is None or ended is None or ended - began < SHORTEST_S:
        return None
    return sum(track.at(ended) - track.at(began) for track in tracks) / (ended - began)
