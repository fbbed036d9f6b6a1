"""Who is started again, who is not, and why."""

from __future__ import annotations

import signal

import pytest

from stoker.jobs.fate import End, fate_of

KILLED, CRASHED = -signal.SIGKILL, -signal.SIGSEGV


@pytest.mark.parametrize(
    ("end", "state", "why"),
    [
        (End(0), "finished", None),
        (End(2, most_restarts=3), "failed", "a mistake in its flags"),
        (End(1, most_restarts=3), "failed", "it left with 1"),
        (End(1, most_restarts=3, neighbour_died=True), "queued", "right after another was killed"),
        (End(KILLED, most_restarts=3), "queued", "killed by SIGKILL"),
        (End(CRASHED, restarts=2, most_restarts=3), "queued", "killed by SIGSEGV"),
        (End(KILLED, restarts=3, most_restarts=3), "failed", "restarted 3 times"),
        (End(KILLED, most_restarts=0), "failed", "killed by SIGKILL"),
        (End(KILLED, done=True, most_restarts=3), "finished", "its evaluation is missing"),
        (End(KILLED, stopping=True, most_restarts=3), "stopped", "SIGKILL"),
        (End(143, stopping=True, most_restarts=3), "stopped", None),
        (End(-signal.SIGTERM, stopping=True, most_restarts=3), "stopped", None),
        (End(143, most_restarts=3), "stopped", "it was sent SIGTERM"),
        (End(130, most_restarts=3), "stopped", "it was sent SIGINT"),
    ],
)
def test_only_what_was_killed_is_started_again(end: End, state: str, why: str | None) -> None:
    fate = fate_of(end)
    assert fate.state == state
    assert fate.why is None if why is None else why in (fate.why or "")
