"""How the reward of a run comes along: at every tenth of its time, and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from stoker.runs.reader import number_of

TENTHS = 10
REWARD = "rollout/ep_rew_mean"
"""What a trial is judged by: the mean return of the last hundred training episodes."""


class Horizon(NamedTuple):
    """How long a run is looked at."""

    unit: Literal["wall_s", "env_steps"]
    end: float

    def position(self, line: Mapping[str, Any]) -> float | None:
        """Where a line of metrics stands. Steps past the end are the last rollout's, and count."""
        at = number_of(line, self.unit)
        return min(at, self.end) if at is not None and self.unit == "env_steps" else at


class Course:
    """The reward of one run, from the lines of its metrics, in order."""

    def __init__(self, horizon: Horizon) -> None:
        self.horizon = horizon
        self.marks: list[float | None] = []
        """The reward at each tenth that has passed; None where no episode had ended."""
        self.reward: float | None = None
        """The last one, up to the end."""
        self.share = 0.0
        """Of the horizon that has passed."""
        self.env_steps = 0
        self.sps: float | None = None

    def note(self, line: Mapping[str, Any]) -> None:
        """A line more."""
        at = self.horizon.position(line)
        if at is None:
            return
        end = self.horizon.end
        while len(self.marks) < TENTHS and at > end * (len(self.marks) + 1) / TENTHS:
            self.marks.append(self.reward)
        self.share = min(1.0, at / end)
        if at > end:
            return
        reward = number_of(line, REWARD)
        self.reward = self.reward if reward is None else reward
        self.env_steps = int(number_of(line, "env_steps") or self.env_steps)
        self.sps = number_of(line, "time/fps") or self.sps
        while len(self.marks) < TENTHS and at >= end * (len(self.marks) + 1) / TENTHS:
            self.marks.append(self.reward)

    @property
    def over(self) -> bool:
        """Whether all of the horizon has passed."""
        return len(self.marks) == TENTHS
