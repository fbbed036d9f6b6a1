"""A job's process, from its start to its end; a job that is restarted has several."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from stoker.config.settings_yaml import dump_settings
from stoker.errors import RunError, StokerError
from stoker.jobs.words import Job, with_flags
from stoker.pools.launch import ONE_THREAD
from stoker.runs.folder import STATUS_NAME, RunFolder
from stoker.runs.steps import list_steps
from stoker.runs.strict_json import write_atomically

_GIB = 2**30
_TAIL_BYTES = 16_384


class Seen(NamedTuple):
    """A status that a job wrote, and when."""

    at: float
    """Unix time."""
    status: Mapping[str, Any]
    agents: int
    """Of a population, each of which makes the steps that the status counts."""

    @property
    def steps(self) -> int:
        """Environment steps of all agents."""
        steps = self.status.get("env_steps")
        return self.agents * steps if isinstance(steps, int) else 0


class Attempt:
    """A process that trains a job on some cores, and writes what it says to a log.

    It has a session of its own, so that a Ctrl-C at the terminal is the packer's to pass on.
    """

    def __init__(
        self,
        job: Job,
        words: Sequence[str],
        cores: Sequence[int],
        command: Sequence[str],
        log: Path,
        surroundings: Mapping[str, str],
    ) -> None:
        self.job, self.cores = job, cores
        self._agents: int | None = None
        if job.file is not None and words[0] == "train":
            write_atomically(Path(words[words.index("--config") + 1]), dump_settings(job.file))
        numbers = ",".join(map(str, cores))
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [*command, numbers, *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**ONE_THREAD, **os.environ, **surroundings},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._let_go()
        return code

    def look(self) -> Seen | None:
        """The newest status that this process wrote; None if there is none."""
        folder = RunFolder(self.job.path)
        try:
            status, at = folder.read_status(), (folder.path / STATUS_NAME).stat().st_mtime
        except (RunError, OSError):
            return None
        if status.get("pid") != self.pid:
            return None
        if self._agents is None:
            self._agents = _agents_of(folder)
        return Seen(at, status, self._agents)

    def host_gib(self) -> float | None:
        """Memory of the process and its workers, with what they share counted once."""
        try:
            first = psutil.Process(self.pid)
            infos = [each.memory_full_info() for each in (first, *first.children(recursive=True))]
        except (psutil.Error, OSError):
            return None
        return sum(getattr(info, "pss", info.rss) for info in infos) / _GIB

    def stop(self) -> None:
        """Ask it to save and leave; asked again, it leaves at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """Its exit code; killed if it has not left in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()
        return self._process.returncode

    def _let_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


def _agents_of(folder: RunFolder) -> int:
    try:
        agents = folder.read_config().get("population")
    except StokerError:
        return 1
    return agents if isinstance(agents, int) else 1


def first_words(job: Job, cores: Sequence[int]) -> tuple[str, ...]:
    """What starts a job on those cores: one worker a core, unless it says how many it wants."""
    if job.words[0] != "train" or job.settings.get("n_workers"):
        return job.words
    return with_flags(job.words, {"n_workers": str(len(cores))})


def resuming_words(job: Job) -> tuple[str, ...]:
    """What has a job go on from its checkpoint."""
    return job.words if job.words[0] == "resume" else ("resume", str(job.path))


def saved_steps(job: Job) -> int | None:
    """Steps of the newest checkpoint of the job's run; None if it has none."""
    steps = list_steps(RunFolder(job.path).checkpoints)
    return steps[-1][0] if steps else None


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that say something."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return _spoken(text)[-count:]


def _spoken(text: str) -> list[str]:
    """Lines with something in them; of the box in which a mistyped flag is told, what it says."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    corners = [place for place, line in enumerate(lines) if line.startswith("╭")]
    box = [line.strip("│ ") for line in lines[corners[-1] + 1 :]] if corners else []
    if not any(line.startswith("For full helptext") for line in box):
        return lines
    told = takewhile(lambda line: line.strip("─"), box)  # up to the first rule
    return [*lines[: corners[-1]], " ".join(told)]
