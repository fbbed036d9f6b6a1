"""Cores: which there are, and a share of them for each job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def our_cores() -> list[int]:
    """Those this process may use; threads of one core side by side, so that no two jobs share it.

    Where the system does not say which they are, as many numbers as there are.
    """
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0), key=lambda core: (_place(core), core))


def _place(core: int, root: Path = _TOPOLOGY) -> tuple[int, int]:
    """The chip that a core is on, and its number there, which the threads of a core share."""
    told = root / f"cpu{core}" / "topology"
    try:
        chip, number = (
            int((told / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return 0, core
    return chip, number


def split(cores: Sequence[int], jobs: int) -> list[tuple[int, ...]]:
    """All of `cores`, each to one of the jobs, in pieces that differ by one core at most."""
    if not 1 <= jobs <= len(cores):
        raise ValueError(f"{len(cores)} cores cannot be split among {jobs} jobs")
    ends = [len(cores) * k // jobs for k in range(jobs + 1)]
    return [tuple(cores[begin:end]) for begin, end in pairwise(ends)]
