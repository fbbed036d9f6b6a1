"""What becomes of a job whose process has ended: done, over, or to be tried again."""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

State = Literal["queued", "starting", "training", "finished", "failed", "stopped"]

_ASKED = {signal.SIGINT, signal.SIGTERM}
_MISTAKE = 2


class Fate(NamedTuple):
    """A state, and why; `queued` is to be started again."""

    state: State
    why: str | None


class End(NamedTuple):
    """How a process ended."""

    code: int
    """Its exit code, or minus the signal that ended it."""
    stopping: bool = False
    """Whether the packer had asked it to leave."""
    done: bool = False
    """Whether its last step had been made and saved."""
    restarts: int = 0
    most_restarts: int = 0
    neighbour_died: bool = False
    """Whether a job that computes through the same MPS server was killed just before."""


def fate_of(end: End) -> Fate:
    """Only what was killed or crashed is started again: anything else would end the same way."""
    if end.code == 0:
        return Fate("finished", None)
    ended_by = signal_of(end.code)
    if ended_by in _ASKED:
        return Fate("stopped", None if end.stopping else f"it was sent {_name(ended_by)}")
    if ended_by is None and not (end.code == 1 and end.neighbour_died):
        mistake = " (a mistake in its flags or settings)" if end.code == _MISTAKE else ""
        return Fate("failed", f"it left with {end.code}{mistake}")
    how = f"killed by {_name(ended_by)}" if ended_by else "it failed right after another was killed"
    if end.done:
        return Fate("finished", f"{how}, after its last step: its evaluation is missing")
    if end.stopping:
        return Fate("stopped", how)
    if end.restarts >= end.most_restarts:
        return Fate("failed", f"{how}, and it had been restarted {end.restarts} times")
    return Fate("queued", how)


def signal_of(code: int) -> int | None:
    """The signal that ended a process, also where it left by itself because of it."""
    if code < 0:
        return -code
    return code - 128 if code - 128 in _ASKED else None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
