"""What a pack is told and tells: its options, each job as it stands, and who follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from stoker.jobs.attempt import Attempt, Seen
from stoker.jobs.fate import State
from stoker.jobs.track import Track
from stoker.jobs.words import Job
from stoker.monitor.records import GpuSample


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to pack."""

    at_once: int = 0
    """Jobs at once; 0 is as many as there is room for."""
    cores_each: int = 1
    """The fewest cores that a job gets."""
    restarts: int = 3
    """How often a job that was killed is started again."""
    baseline_s: float = 0.0
    """Seconds that one job is measured alone first; 0 is not at all."""
    mps: Literal["auto", "on", "off"] = "auto"


@dataclass
class Entry:
    """A job, and how it stands."""

    job: Job
    log: Path
    state: State = "queued"
    why: str | None = None
    code: int | None = None
    cores: tuple[int, ...] = ()
    restarts: int = 0
    attempt: Attempt | None = None
    seen: Seen | None = None
    track: Track = field(default_factory=Track)
    was_there: bool = False
    """Whether the run's folder was there before the job."""


class Board(NamedTuple):
    """How all of it stands, for a screen."""

    entries: Sequence[Entry]
    gpu: GpuSample | None
    alone_sps: float | None


class Audience(Protocol):
    """Whoever follows a pack."""

    def says(self, line: str) -> None: ...

    def shows(self, board: Board) -> None: ...
