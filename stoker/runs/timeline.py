"""timeline.jsonl: where a run's time went, a stretch a line, in a file that stays small.

Stretches are joined to the cells of a grid. When a run has trained for so long that there would be
too many, cells become twice as wide: so a run of a week has as many lines as one of an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from stoker.runs.folder import TIMELINE_NAME, RunFolder
from stoker.runs.growing import LineFile
from stoker.runs.strict_json import dumps, loads, write_atomically
from stoker.types import Stretch

MOST_CELLS = 4096
_NARROWEST_S = 0.25  # which floats can tell exactly
_RETRY_S = 60.0
_DIGITS = 5
_MOST_BYTES = 2**24
"""A file that is larger is none of ours, and is not read."""


def cell_width(seconds: float, most: int = MOST_CELLS) -> float:
    """How wide the cells of a run are that has trained for so long."""
    width = _NARROWEST_S
    while seconds >= width * most:
        width *= 2
    return width


def join(stretches: Sequence[Stretch]) -> Stretch:
    """One of several: seconds add up, and figures are means over the time they are known for."""
    if len(stretches) == 1:
        return stretches[0]
    names = dict.fromkeys(name for each in stretches for name in each.threads)
    return Stretch(
        stretches[0].at,
        sum(each.seconds for each in stretches),
        {name: _sums([each.threads.get(name, {}) for each in stretches]) for name in names},
        _means([(each.seconds, each.gpu) for each in stretches]),
        _means([(each.seconds, each.host) for each in stretches]),
    )


def coarsened(stretches: Iterable[Stretch], width: float) -> list[Stretch]:
    """Those of each cell of that width as one."""
    cells = groupby(stretches, key=lambda each: each.at // width)
    return [join(list(inside)) for _, inside in cells]


def squeezed(stretches: Sequence[Stretch], most: int) -> list[Stretch]:
    """As many as that at most, for whoever has no room for more."""
    last = stretches[-1].at if stretches else 0.0
    return coarsened(stretches, cell_width(last, most))


def _sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def _means(weighed: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for weight, figures in weighed:
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + weight * value
            weights[name] = weights.get(name, 0.0) + weight
    return {name: total / weights[name] for name, total in sums.items() if weights[name] > 0}


class TimelineFile:
    """Writes a run's timeline. No method raises for a disk that fails; `trouble` says so.

    It goes on from what the file holds of the first `before_s` seconds: what a run trained for
    after the checkpoint that it resumes from is forgotten.
    """

    def __init__(
        self, folder: RunFolder, before_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._clock = folder.path / TIMELINE_NAME, clock
        self._lines = LineFile(self._path)
        self._rewriting: str | None = None
        found = read_timeline(folder.path) if before_s > 0 else []
        self._cells = [each for each in found if each.at < before_s]
        self._width, self._written = _NARROWEST_S, 0
        self._anew, self._retry_at = bool(found), float("-inf")

    @property
    def trouble(self) -> str | None:
        return self._rewriting or self._lines.trouble

    def add(self, stretches: Iterable[Stretch]) -> None:
        """Take what came next, and write the cells that are full."""
        for each in stretches:
            self._widen(each.at)
            if self._cells and self._cells[-1].at // self._width == each.at // self._width:
                self._cells[-1] = join((self._cells[-1], each))
            else:
                self._cells.append(each)
        if self.trouble is None or self._clock() >= self._retry_at:
            self._write(len(self._cells) - 1)

    def close(self) -> None:
        """Write the last cell, too."""
        self._write(len(self._cells))
        self._lines.close()

    def _widen(self, at: float) -> None:
        width = cell_width(at)
        if width > self._width:
            cells = coarsened(self._cells, width)
            self._anew |= len(cells) < len(self._cells)
            self._width, self._cells = width, cells

    def _write(self, until: int) -> None:
        """Cells up to that one; all of them anew where those before were joined."""
        if self._anew:
            self._rewrite(until)
        elif until > self._written:
            self._lines.append(_as_lines(self._cells[self._written : until]))
            if self._lines.trouble is None:
                self._written = until
        if self.trouble is not None:
            self._retry_at = self._clock() + _RETRY_S

    def _rewrite(self, until: int) -> None:
        try:
            write_atomically(self._path, _as_lines(self._cells[:until]))
        except OSError as error:
            self._rewriting = f"Cannot write {self._path}: {error.strerror or error}."
        else:
            self._rewriting, self._anew, self._written = None, False, until


def _as_lines(stretches: Iterable[Stretch]) -> bytes:
    return "".join(dumps(_rounded(each)) + "\n" for each in stretches).encode()


def _rounded(each: Stretch) -> dict[str, Any]:
    return {
        "at": round(each.at, _DIGITS),
        "seconds": round(each.seconds, _DIGITS),
        "threads": {name: _round_all(phases) for name, phases in each.threads.items()},
        "gpu": _round_all(each.gpu),
        "host": _round_all(each.host),
    }


def _round_all(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(number, _DIGITS) for name, number in numbers.items()}


def read_timeline(path: Path) -> list[Stretch]:
    """The timeline of the run at `path`, in order; [] if it has none.

    A line that is torn or damaged is passed over: the run may be writing it now.
    """
    file = path / TIMELINE_NAME
    try:
        if file.stat().st_size > _MOST_BYTES:
            return []
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    whole = [each for line in lines if (each := parse_stretch(line)) is not None]
    return sorted(whole, key=lambda each: each.at)


def parse_stretch(line: bytes) -> Stretch | None:
    """One line of timeline.jsonl, or None if it is not one."""
    try:
        entry = loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or set(entry) != set(Stretch._fields):
        return None
    threads = entry["threads"]
    if not isinstance(threads, dict):
        return None
    parts = [{"at": entry["at"], "seconds": entry["seconds"]}, entry["gpu"], entry["host"]]
    whole = all(map(_holds_numbers, [*parts, *threads.values()])) and entry["seconds"] > 0
    return Stretch(**entry) if whole else None


def _holds_numbers(part: Any) -> bool:
    return isinstance(part, dict) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in part.values()
    )
