"""`stoker monitor`: what GPUs, cores and memory do, live, or as lines for other programs."""

from __future__ import annotations

import csv
import itertools
import math
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro
from rich.console import Console

from stoker.cli.flags import find_run, parse
from stoker.cli.monitor_view import LiveScreen, OneScreen, PlainLines
from stoker.cli.signals import end_on_sigterm
from stoker.cli.snapshot import Snapshot, as_object, as_row, take_snapshot
from stoker.errors import ConfigError, RunError
from stoker.monitor.sampler import Sampler
from stoker.runs.folder import RunFolder
from stoker.runs.strict_json import dumps

_OPENS_WITHIN_S = 10.0
_LEAST_S = 0.1


@dataclass(frozen=True, kw_only=True)
class MonitorArguments:
    """Show what this machine does: each GPU, each core, memory and disks; and a run beside it.

    What cannot be read is unknown. Ctrl-C ends it.
    """

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None
    """A run's name, or the path of its folder: its status is shown, too, and what is its own."""
    every: float = 0.5
    """Seconds from one look to the next; figures are means over that time."""
    once: bool = False
    """Look once, and leave."""
    json: bool = False
    """Print a JSON object a line; null is unknown."""
    csv: bool = False
    """Print comma-separated values under a line of names; an empty cell is unknown."""
    runs_dir: str = "runs"
    """Where run folders lie."""


class View(Protocol):
    """Somewhere to show snapshots."""

    def show(self, shot: Snapshot) -> None: ...

    def close(self) -> None: ...


def monitor(arguments: list[str]) -> int:
    """`stoker monitor`."""
    given = parse(MonitorArguments, arguments, "monitor")
    _check(given)
    run = None
    if given.run is not None:
        run = RunFolder.open(find_run(given.run, given.runs_dir)).path
    end_on_sigterm()
    sampler = Sampler(host=run or Path(), pid=_pid_of(run), host_every_s=min(1.0, given.every / 2))
    with sampler, closing(_view(given)) as view:
        for shot in _snapshots(sampler, run, given.every):
            view.show(shot)
            if given.once:
                break
    return 0


def _check(given: MonitorArguments) -> None:
    problems = []
    if not (math.isfinite(given.every) and given.every >= _LEAST_S):
        problems.append(f"every is {given.every:g}; it must be {_LEAST_S:g} seconds or more.")
    if given.json and given.csv:
        problems.append("json and csv are both asked for; lines are either. Leave one out.")
    if problems:
        raise ConfigError(problems)


def _view(given: MonitorArguments) -> View:
    if given.json:
        return JsonLines()
    if given.csv:
        return CsvLines()
    console = Console(highlight=False)
    if not console.is_terminal:
        return PlainLines(console)
    return OneScreen(console) if given.once else LiveScreen(console)


def _snapshots(sampler: Sampler, run: Path | None, every: float) -> Iterator[Snapshot]:
    """One after each interval, for ever."""
    sampler.wait_until_open(_OPENS_WITHIN_S)
    began = start = time.monotonic()
    for number in itertools.count(1):
        time.sleep(max(0.0, start + number * every - time.monotonic()))
        ended = time.monotonic()
        yield take_snapshot(sampler, run, began, ended)
        began, sampler.pid = ended, _pid_of(run)


def _pid_of(run: Path | None) -> int | None:
    """The process that trains the run, if it does so on this machine."""
    if run is None:
        return None
    try:
        status: dict[str, Any] = RunFolder(run).read_status()
    except RunError:
        return None
    here = status.get("host") == socket.gethostname() and status.get("state") == "running"
    pid = status.get("pid")
    return pid if here and isinstance(pid, int) else None


class JsonLines:
    """A JSON object a line."""

    def show(self, shot: Snapshot) -> None:
        print(dumps(as_object(shot)), flush=True)

    def close(self) -> None:
        """Nothing is left open."""


class CsvLines:
    """Comma-separated values; the first snapshot names the columns."""

    def __init__(self) -> None:
        self._writer: csv.DictWriter[str] | None = None

    def show(self, shot: Snapshot) -> None:
        row = as_row(shot)
        if self._writer is None:
            self._writer = csv.DictWriter(
                sys.stdout, list(row), restval="", extrasaction="ignore", lineterminator="\n"
            )
            self._writer.writeheader()
        self._writer.writerow(row)
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is left open."""
