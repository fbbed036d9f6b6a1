"""The machine beside its GPUs: cores, memory, disks, and a process with its workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from stoker.monitor.records import HostSample
from stoker.monitor.rounds import CpuClock, Round, Rounds

_GIB = 2**30
_SHM = Path("/dev/shm")
# How often to read, in seconds, and the most of a core that it may take; see docs/monitor.md.
_CORES = (1.0, 0.0005)
_DISKS = (5.0, 0.0001)
_PROCESSES = (5.0, 0.0004)


class HostReader:
    """Samples of the host: of its cores and memory; and where `folder` is given, of the disk that
    it lies on, and of the process `pid` with all below it."""

    def __init__(
        self,
        folder: Path | None,
        pid: Callable[[], int | None] = lambda: None,
        cores_every_s: float = _CORES[0],
        cpu_clock: CpuClock = time.thread_time,
    ) -> None:
        self._pid = pid
        self._crew = Crew()
        self._compared = False
        cores = ("cpu", "cores", "memory_used_gib", "memory_total_gib")
        disks = ("disk_used_gib", "disk_total_gib", "shm_used_gib", "shm_total_gib")
        processes = ("process_cores", "workers_cores")
        rounds = [Round(cores, self._cores_and_memory, cores_every_s, _CORES[1])]
        if folder is not None:
            rounds += [
                Round(disks, partial(_disks, folder), *_DISKS),
                Round(processes, self._processes, *_PROCESSES),
            ]
        self._rounds = Rounds(rounds, cpu_clock)

    @property
    def due(self) -> float:
        return self._rounds.due

    def sample(self, now: float) -> HostSample:
        """What is known now."""
        self._rounds.read(now)
        return HostSample(now, **self._rounds.known)

    def _cores_and_memory(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        shares = tuple(percent / 100 for percent in psutil.cpu_percent(percpu=True))
        known = self._compared and len(shares) > 0
        self._compared = True  # psutil compares with the last call, so the first says nothing
        return {
            "cpu": sum(shares) / len(shares) if known else None,
            "cores": shares if known else None,
            "memory_used_gib": (memory.total - memory.available) / _GIB,
            "memory_total_gib": memory.total / _GIB,
        }

    def _processes(self) -> dict[str, Any]:
        process, workers = self._crew.cores(self._pid())
        return {"process_cores": process, "workers_cores": workers}


def _disks(folder: Path) -> dict[str, Any]:
    disk_used, disk_total = disk_gib(folder)
    shm_used, shm_total = disk_gib(_SHM)
    return {
        "disk_used_gib": disk_used,
        "disk_total_gib": disk_total,
        "shm_used_gib": shm_used,
        "shm_total_gib": shm_total,
    }


def disk_gib(folder: Path) -> tuple[float | None, float | None]:
    """Used and total GiB of the disk that `folder` lies on, or will lie on; None is unknown."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), None)
    if there is None or (folder == _SHM and there != folder):
        return None, None
    try:
        usage = shutil.disk_usage(there)
    except OSError:
        return None, None
    return usage.used / _GIB, usage.total / _GIB


class Crew:
    """A process and all below it, by what they take of the processors."""

    def __init__(self) -> None:
        self._known: dict[psutil.Process, psutil.Process] = {}

    def cores(self, pid: int | None) -> tuple[float | None, float | None]:
        """Cores' worth since the last call, of the process and of its workers; None is unknown.

        Who is new is known from the next call on. Looking for workers reads every process of the
        machine.
        """
        if pid is None:
            return None, None
        try:
            first = psutil.Process(pid)
            found = [first, *first.children(recursive=True)]
        except (psutil.Error, OSError):
            self._known.clear()
            return None, None
        before, self._known = self._known, {}
        shares = []
        for process in found:
            same = before.get(process, process)  # which remembers its last reading
            share = _share(same)
            self._known[same] = same
            shares.append(share if same is not process else None)
        known = [share for share in shares[1:] if share is not None]
        workers = sum(known) if known or len(found) == 1 else None
        return shares[0], (None if shares[0] is None else workers)


def _share(process: psutil.Process) -> float | None:
    try:
        return process.cpu_percent() / 100
    except (psutil.Error, OSError):  # it has ended, or is not ours to see
        return None
