"""Faults that were mended: shown, counted, and past a limit raised."""

from __future__ import annotations

import time
import warnings
from collections import deque

from stoker.config.schema import FaultSettings
from stoker.errors import BadValueError, EpisodeCutError, StokerError

KINDS = ("env_errors", "worker_deaths", "hangs", "bad_values", "cut_episodes")


class FaultLog:
    """Shows every fault once, as a warning; one too many in the window is raised instead."""

    def __init__(self, settings: FaultSettings) -> None:
        self._settings = settings
        self._recent: deque[float] = deque()
        self.counts = dict.fromkeys(KINDS, 0)

    def note(self, kind: str, error: StokerError) -> None:
        """Count a fault that is about to be mended, or raise `error` if it may not be."""
        limit, window = self._settings.max_faults, self._settings.fault_window
        if isinstance(error, BadValueError) and self._settings.bad_values == "stop":
            raise error
        now = time.monotonic()
        self.counts[kind] += 1
        self._recent.append(now)
        while self._recent[0] < now - window:
            self._recent.popleft()
        if len(self._recent) > limit:
            if limit:
                error.add_note(_limit_note(len(self._recent), window, limit))
            raise error
        warnings.warn(f"{error}\nIts episode is cut off, and a new one begins.", stacklevel=3)

    def note_env(self, error: StokerError) -> None:
        """Count an environment's own error, by what it is."""
        if isinstance(error, EpisodeCutError):
            self.counts["cut_episodes"] += 1
            if self.counts["cut_episodes"] == 1:
                warnings.warn(
                    f"An episode was cut off: {error} Others will only be counted "
                    "(faults/cut_episodes).",
                    stacklevel=2,
                )
            return
        self.note("bad_values" if isinstance(error, BadValueError) else "env_errors", error)


def _limit_note(found: int, window: float, limit: int) -> str:
    return (
        f"This is fault number {found} within {window:g} s, and {limit} are mended (max_faults). "
        "Mend the environment, or allow more with --max-faults."
    )
