"""Two sides in one run: by turns, so that a change of the machine's mood hits each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from importlib.metadata import version

import psutil


def by_turns(sides: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """What each side gives, again and again, the order turned round each time."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        order = list(sides) if repeat % 2 == 0 else list(sides)[::-1]
        for name in order:
            found[name].append(sides[name]())
    return found


def middle_ratio(ours: list[float], theirs: list[float]) -> float:
    """The middle one of the ratios taken side by side."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def version_of(package: str) -> str:
    return version(package)


def is_worker(process: psutil.Process) -> bool:
    """Not one of the two servers that multiprocessing keeps."""
    return "resource_tracker" not in " ".join(process.cmdline()) and not process.children()
