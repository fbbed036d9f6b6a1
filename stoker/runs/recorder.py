"""What a run reports while it trains: metrics.jsonl and TensorBoard. Trouble never stops it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping

from stoker.runs.events import EventFile
from stoker.runs.folder import METRICS_NAME, RunFolder
from stoker.runs.growing import LineFile
from stoker.runs.reader import parse_line
from stoker.runs.strict_json import dumps

_OWN_NAMES = ("env_steps", "wall_s")


class Recorder:
    """Appends metrics to a run. No method raises for a disk that fails; `trouble` says so.

    `trouble` is what went wrong last, None once writing works again. The first occurrence is
    warned of. `wall_s_before` is the training time of the run's earlier sessions.
    """

    def __init__(self, folder: RunFolder, *, wall_s_before: float = 0.0) -> None:
        self._lines = LineFile(folder.path / METRICS_NAME)
        self._events = EventFile(folder.path)
        self._started = time.monotonic() - wall_s_before
        self._warned = False

    @property
    def trouble(self) -> str | None:
        return self._lines.trouble or self._events.trouble

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write `metrics` as of environment step `step`; non-finite values are left out.

        `env_steps` and `wall_s` are the recorder's own names: a metric cannot take them.
        """
        numbers = {name: float(value) for name, value in metrics.items() if name not in _OWN_NAMES}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        wall_s = round(time.monotonic() - self._started, 3)
        self._lines.append(dumps({"env_steps": step, "wall_s": wall_s, **finite}).encode() + b"\n")
        self._events.add(step, finite)
        self._warn_once()

    def truncate_after(self, step: int) -> None:
        """Drop what was recorded past environment step `step`, and a torn last line: the run goes
        on from there and will record it anew. TensorBoard is told to forget it too."""
        self._lines.keep_while(lambda line: _step_of(line) <= step)  # they only grow along it
        self._events.forget_after(step)
        self._warn_once()

    def close(self) -> None:
        """Finish writing."""
        self._lines.close()
        self._events.close()
        self._warn_once()

    def _warn_once(self) -> None:
        if self.trouble and not self._warned:
            self._warned = True
            warnings.warn(f"{self.trouble} Training goes on.", stacklevel=3)


def _step_of(line: bytes) -> float:
    """Of a line that is not whole, one before all others: what comes after it may be."""
    entry = parse_line(line)
    return -math.inf if entry is None else float(entry["env_steps"])
