"""Trials on a Ray cluster: each run is started, followed and ended by an actor on its machine.

The run itself is the same process as anywhere else. Its folder is a temporary one of that machine;
what it logs comes back line by line. When the machine is gone, the run counts as killed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from stoker.jobs.attempt import Attempt, first_words, last_lines
from stoker.jobs.cores import our_cores
from stoker.jobs.words import Job, make_job
from stoker.pools.cluster import connected, import_ray, machines, surroundings
from stoker.sweep.engine import KILLED
from stoker.sweep.local import Tail, read_standings

_COMMAND = (sys.executable, "-m", "stoker.cli.job")
_EVERY_S = 0.3
_KEPT_LINES = 20


class News(NamedTuple):
    """What an actor tells."""

    code: int | None
    begun: bool
    lines: list[dict[str, Any]]
    said: list[str]
    """Its last lines, once it has ended."""
    standings: dict[int, float]
    """Of a population that has ended."""


class Remote:
    """A run on the machine that this object is on."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], cpus: int, surroundings: Mapping[str, str]
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-sweep-"))
        file_words = ("train", "--config", str(self._folder / f"{name}.yaml"))
        file = {**settings, "run_name": name, "runs_dir": str(self._folder)}
        job = make_job(file_words, name, str(self._folder))._replace(settings=settings, file=file)
        cores, self._log = our_cores(), self._folder / f"{name}.log"
        words = first_words(job, cores[:cpus])
        self._attempt = Attempt(job, words, cores, _COMMAND, self._log, surroundings)
        self._run, self._tail = job.path, Tail(job.path)

    def look(self) -> News:
        """What is new; the code comes with all that was left to tell."""
        code, begun = self._attempt.ended(), self._attempt.look() is not None
        said = [] if code is None else last_lines(self._log, _KEPT_LINES)
        standings = {} if code is None else read_standings(self._run)
        return News(code, begun, self._tail.news(), said, standings)

    def stop(self) -> None:
        """Ask it to leave."""
        self._attempt.stop()

    def wait(self, timeout_s: float) -> int:
        """Its exit code; killed if it has not left in time."""
        return self._attempt.wait(timeout_s)

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)


class RayProcess:
    """A run on some machine of the cluster."""

    where = "ray"

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._code: int | None = None
        self._begun = False
        self._lines: list[dict[str, Any]] = []
        self._said: list[str] = []
        self._standings: dict[int, float] = {}
        self._pending: Any = actor.look.remote()
        self._asked_at = time.monotonic()

    def ended(self) -> int | None:
        self._poll()
        return self._code

    def begun(self) -> bool:
        return self._begun

    def news(self) -> Sequence[dict[str, Any]]:
        lines, self._lines = self._lines, []
        return lines

    def standings(self) -> dict[int, float]:
        return self._standings

    def stop(self) -> None:
        if self._code is None:
            self._actor.stop.remote()

    def wait(self, timeout_s: float) -> int:
        if self._code is None:
            try:
                left = self._actor.wait.remote(timeout_s)
                self._end(int(self._ray.get(left, timeout=timeout_s + _EVERY_S)))
            except self._ray.exceptions.RayError:
                self._end(KILLED)
        return KILLED if self._code is None else self._code

    def last_lines(self, count: int) -> list[str]:
        return self._said[-count:]

    def _poll(self) -> None:
        if self._code is not None or time.monotonic() - self._asked_at < _EVERY_S:
            return
        if not self._ray.wait([self._pending], timeout=0)[0]:
            return
        try:
            self._hear(self._ray.get(self._pending))
        except self._ray.exceptions.RayError:  # the machine is gone, or the actor's process
            self._end(KILLED)

    def _hear(self, news: News) -> None:
        self._begun = news.begun
        self._lines += news.lines
        self._said, self._standings = news.said, news.standings
        if news.code is not None:
            self._end(news.code)
        else:
            self._pending, self._asked_at = self._actor.look.remote(), time.monotonic()

    def _end(self, code: int) -> None:
        self._code = code
        with suppress(Exception):  # whatever is left of it goes with its machine
            self._actor.close.remote()
            self._actor.__ray_terminate__.remote()


class RayEngine:
    """Runs as many processes as the cluster has room for; machines may come and go."""

    def __init__(self, jobs: int, on_gpu: bool, says: Callable[[str], None]) -> None:
        """`jobs` at once; 0 is one a core, or one a GPU if they train there."""
        self._jobs, self._on_gpu, self._says = jobs, on_gpu, says
        self._ray = import_ray("engine")
        self._running: list[RayProcess] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        with connected(self._ray):
            found = machines(self._ray)
            self._says(f"Ray: {len(found)} machines, {self._at_once()} runs at once.")
            yield

    def room(self) -> int:
        self._running = [each for each in self._running if each.ended() is None]
        return max(0, self._at_once() - len(self._running))

    def start(self, job: Job) -> RayProcess:
        cpus = self._cpus()
        actor = self._ray.remote(Remote).options(
            num_cpus=cpus, num_gpus=self._gpus(), max_restarts=0
        )
        remote = actor.remote(job.name, dict(job.settings), cpus, surroundings())
        process = RayProcess(self._ray, remote)
        self._running.append(process)
        return process

    def _sum(self, what: str) -> int:
        return int(sum(each.resources.get(what, 0) for each in machines(self._ray)))

    def _at_once(self) -> int:
        """At least one: a cluster may be waiting for its machines."""
        most = self._sum("CPU")
        gpus = self._sum("GPU") if self._on_gpu else 0
        return max(1, min(most, self._jobs or gpus or most))

    def _cpus(self) -> int:
        """Cores of a run: its share, as far as any one machine can give it."""
        each = [machine.cpus for machine in machines(self._ray)]
        return max(1, min([sum(each) // self._at_once(), *each])) if each else 1

    def _gpus(self) -> float:
        gpus = self._sum("GPU") if self._on_gpu else 0
        return 0 if not gpus else 1 / -(-self._at_once() // gpus)
