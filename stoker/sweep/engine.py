"""Where trials run: what a sweep asks of this machine, or of many."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stoker.jobs.words import Job

KILLED = -9
"""What a process on a machine that is gone is taken to have left with."""


class Process(Protocol):
    """A run that trains."""

    where: str
    """Cores, or a machine."""

    def ended(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""

    def begun(self) -> bool:
        """Whether it trains: what goes before is building."""

    def news(self) -> Sequence[dict[str, Any]]:
        """The lines of its metrics since the last call."""

    def standings(self) -> dict[int, float]:
        """Once it has ended: of a population, the reward of each agent that is known."""

    def stop(self) -> None:
        """Ask it to leave; asked again, it leaves at once."""

    def wait(self, timeout_s: float) -> int:
        """Its exit code; killed if it has not left in time."""

    def last_lines(self, count: int) -> list[str]:
        """The last that it said."""


class Engine(Protocol):
    """Starts processes while there is room for them."""

    def open(self) -> AbstractContextManager[None]:
        """While it is open, processes can be started."""

    def room(self) -> int:
        """How many more may be started now."""

    def start(self, job: Job) -> Process: ...
