"""The host's figures, of a machine that is made up and of this one."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from stoker.monitor.host import Crew, HostReader, disk_gib

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, one busy; 48 of 64 GiB in use; disks of 100 GiB with 30 in use."""
    memory = types.SimpleNamespace(total=64 * GIB, available=16 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [100.0, 20.0])
    usage = types.SimpleNamespace(used=30 * GIB, total=100 * GIB)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)


def test_every_figure_is_read_in_its_unit(machine: None, tmp_path: Path) -> None:
    reader = HostReader(tmp_path)
    first = reader.sample(0.0)
    assert (first.cpu, first.cores) == (None, None)  # psutil's first answer is always 0
    found = reader.sample(10.0)
    assert found.cpu == pytest.approx(0.6)
    assert found.cores == (1.0, 0.2)
    assert (found.memory_used_gib, found.memory_total_gib) == (48.0, 64.0)
    assert (found.disk_used_gib, found.disk_total_gib) == (30.0, 100.0)
    assert (found.process_cores, found.workers_cores) == (None, None)  # none was to be watched


def test_what_cannot_be_read_is_unknown_and_all_else_is_known(
    machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError

    monkeypatch.setattr("shutil.disk_usage", refuse)
    found = HostReader(tmp_path).sample(0.0)
    assert (found.disk_used_gib, found.shm_total_gib) == (None, None)
    assert found.memory_used_gib == 48.0


def test_a_folder_that_is_yet_to_be_made_lies_on_the_disk_of_the_one_above(tmp_path: Path) -> None:
    assert disk_gib(tmp_path / "runs" / "new")[1] == disk_gib(tmp_path)[1] is not None


def test_a_system_without_dev_shm_has_no_figure_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Path("/no-such-folder/shm")
    monkeypatch.setattr("stoker.monitor.host._SHM", nowhere)
    assert disk_gib(nowhere) == (None, None)


_ALONE = """
import json, os, subprocess, sys, time
from stoker.monitor.host import Crew

crew = Crew()
seen = [crew.cores(os.getpid())]
spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    seen.append(crew.cores(os.getpid()))
    time.sleep(1.0)
    seen.append(crew.cores(os.getpid()))
finally:
    spinning.kill()
    spinning.wait()
print(json.dumps(seen))
"""


@pytest.mark.alone
def test_a_process_and_its_workers_are_told_apart() -> None:
    """In a process of its own, that has no other: the worker spins while it sleeps."""
    told = subprocess.run(
        [sys.executable, "-c", _ALONE], capture_output=True, text=True, check=True
    )
    first, just_come, later = json.loads(told.stdout)
    assert first == [None, None]
    assert just_come[0] is not None
    assert just_come[1] is None
    assert later[1] > 0.1
    assert later[1] > 3 * later[0]


def test_a_process_that_is_gone_is_unknown() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    crew = Crew()
    assert crew.cores(ended.pid) == (None, None)
    assert crew.cores(ended.pid) == (None, None)
