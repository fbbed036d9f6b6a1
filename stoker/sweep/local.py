"""Trials on this machine: as many at once, on cores of their own, as the packer's rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.jobs.alone import follow
from stoker.jobs.attempt import Attempt, first_words, last_lines
from stoker.jobs.entry import Entry
from stoker.jobs.premises import Premises
from stoker.jobs.words import Job
from stoker.runs.folder import METRICS_NAME, POPULATION_NAME
from stoker.runs.reader import parse_line
from stoker.runs.strict_json import loads


class Tail:
    """The lines of a run's metrics, each once."""

    def __init__(self, run: Path) -> None:
        self._file, self._read = run / METRICS_NAME, 0

    def news(self) -> list[dict[str, Any]]:
        """The whole lines since the last call."""
        try:
            with open(self._file, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [entry for line in whole.splitlines() if (entry := parse_line(line)) is not None]


def read_standings(run: Path) -> dict[int, float]:
    """The reward of each agent of a population, where it is known; empty if there are none."""
    try:
        agents = loads((run / POPULATION_NAME).read_bytes())["agents"]
        return {one["agent"]: one["reward"] for one in agents if one["reward"] is not None}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


class LocalProcess:
    """A run in a process of this machine."""

    def __init__(self, entry: Entry, attempt: Attempt) -> None:
        self.where = "cores " + ",".join(map(str, entry.cores))
        self.entry, self._attempt, self._tail = entry, attempt, Tail(entry.job.path)

    def ended(self) -> int | None:
        return self._attempt.ended()

    def begun(self) -> bool:
        return self._attempt.look() is not None

    def news(self) -> Sequence[dict[str, Any]]:
        follow(self._attempt, self.entry.track)
        return self._tail.news()

    def standings(self) -> dict[int, float]:
        return read_standings(self.entry.job.path)

    def stop(self) -> None:
        self._attempt.stop()

    def wait(self, timeout_s: float) -> int:
        return self._attempt.wait(timeout_s)

    def last_lines(self, count: int) -> list[str]:
        return last_lines(self.entry.log, count)


class LocalEngine:
    """Processes on the premises that a packer would have."""

    def __init__(self, premises: Premises, command: Sequence[str]) -> None:
        """`command` starts a run: the numbers of its cores and its words are added."""
        self._premises, self._command = premises, command
        self._running: list[LocalProcess] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        with self._premises.open():
            self._premises.start_mps()
            self._premises.divide()
            yield

    def room(self) -> int:
        """By the cores that are free, and once a run trains by what that takes, too."""
        premises = self._premises
        for process in [each for each in self._running if each.ended() is not None]:
            self._running.remove(process)
            premises.free.append(process.entry.cores)
        if premises.admission is None:
            for process in self._running[:1]:
                premises.admit_by(process.entry)
        at_once = premises.admission.at_once if premises.admission else 1
        return min(len(premises.free), at_once - len(self._running))

    def start(self, job: Job) -> LocalProcess:
        cores = self._premises.free.pop(0)
        entry = Entry(job, job.path.with_suffix(".log"), cores=cores)
        surroundings = self._premises.mps.surroundings
        words = first_words(job, cores)
        attempt = Attempt(job, words, cores, self._command, entry.log, surroundings)
        entry.attempt = attempt
        process = LocalProcess(entry, attempt)
        self._running.append(process)
        return process
