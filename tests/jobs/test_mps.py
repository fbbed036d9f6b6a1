"""MPS: whether it can be used is found out first, and what was started ends with us."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.jobs.mps import Mps

CONTROL = """#!/bin/sh
echo "$@" "$(test -t 0 || cat)" >> {told}
echo "$CUDA_MPS_PIPE_DIRECTORY" > {where}
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What was said to the control program, which does nothing else."""
    told = tmp_path / "told"
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(CONTROL.format(told=told, where=tmp_path / "where"))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return told


def test_it_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mps = Mps()
    assert not mps.start()
    assert mps.why_not == "nvidia-cuda-mps-control is not installed"
    assert mps.surroundings == {}


def test_what_nobody_can_compute_through_is_ended(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.jobs.mps._TRIAL", "import sys; sys.exit(5)")
    mps = Mps()
    assert not mps.start()
    assert mps.why_not == "a process cannot compute through it: code 5"
    assert [line.split() for line in told.read_text().splitlines()] == [["-d"], ["quit"]]
    assert mps.surroundings == {}


def test_what_runs_is_told_to_those_who_use_it_and_ends_with_close(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.jobs.mps._TRIAL", "")
    mps = Mps()
    assert mps.start()
    pipe = Path(mps.surroundings["CUDA_MPS_PIPE_DIRECTORY"])
    assert pipe.is_dir()
    assert told.with_name("where").read_text().strip() == str(pipe)
    mps.close()
    assert not pipe.parent.exists()
    assert told.read_text().splitlines()[-1].split() == ["quit"]


def test_it_ends_with_a_process_that_is_killed(told: Path) -> None:
    program = """if True:
        import os, signal
        from stoker.jobs import mps
        mps._TRIAL = ""
        assert mps.Mps().start()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", program])
    pipe = Path(told.with_name("where").read_text().strip())
    deadline = time.monotonic() + 30
    while "quit" not in told.read_text() or pipe.parent.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
