"""Whether the process that a file names is still there."""

from __future__ import annotations

import psutil


def is_alive(pid: int, *, at: float | None = None) -> bool:
    """Whether process `pid` runs now and, given `at`, is the one that ran at that Unix time.

    A zombie is dead. A process born after `at` took over the number of the one meant.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Boot-relative process times are rounded: a second of grace keeps a young run alive.
        return at is None or process.create_time() <= at + 1.0
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False
