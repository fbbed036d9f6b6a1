"""What a job does before it trains: keep to its cores, and see to it that it is never orphaned."""

from __future__ import annotations

import os
import signal
import threading


def keep_to(cores: str) -> None:
    """Have this process and all that it starts use these cores alone, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])


def leave_with_packer() -> None:
    """When the packer is gone, however it went, be told as if by SIGTERM: save and leave.

    The packer holds the other end of standard input and writes nothing; so it ends with the packer.
    """
    packer = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the pipe is nobody else's: not the environments', not the workers'
    os.close(nothing)
    threading.Thread(target=_watch, args=(packer,), name="stoker-packer", daemon=True).start()


def _watch(packer: int) -> None:
    while os.read(packer, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
