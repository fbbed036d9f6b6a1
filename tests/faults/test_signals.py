"""Ctrl-C and SIGTERM: saved, with 130 or 143; asked twice, or past the deadline, at once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.runs import checkpoint as checkpoints

Start = Callable[..., subprocess.Popen[str]]


def wait_until_it_trains(process: subprocess.Popen[str], run: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "metrics.jsonl").exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"it does not train: {process.communicate()}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("pool", ["inline", "process"])
def test_a_signal_saves_and_leaves(
    number: int, code: int, pool: str, start_stoker: Start, tmp_path: Path
) -> None:
    words = f"train --timesteps 10M --n-envs 2 --device cpu --pool {pool} --run-name stopped"
    process = start_stoker(*words.split())
    wait_until_it_trains(process, tmp_path / "runs/stopped")
    asked = time.monotonic()
    process.send_signal(number)
    out, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert time.monotonic() - asked < 10
    assert "Traceback" not in error
    assert "stoker resume" in out
    status = json.loads((tmp_path / "runs/stopped/status.json").read_text())
    assert status["state"] == "stopped"
    _, saved = checkpoints.load_newest(tmp_path / "runs/stopped/checkpoints")
    assert saved.state["counters"]["env_steps"] == status["env_steps"] > 0


def hang(process: subprocess.Popen[str], folder: Path, name: str) -> None:
    """Have the environment of a training run sleep."""
    wait_until_it_trains(process, folder / "runs" / name)
    (folder / "slow").touch()
    time.sleep(0.5)


_SLOW = "train --env tasks:Slow --timesteps 10M --n-steps 2 --batch-size 2 --device cpu"


def test_a_second_signal_leaves_at_once(start_stoker: Start, tmp_path: Path) -> None:
    process = start_stoker(*_SLOW.split(), "--run-name", "twice")
    hang(process, tmp_path, "twice")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - asked < 2
    assert "Asked twice" in error


def test_the_deadline_is_kept(start_stoker: Start, tmp_path: Path) -> None:
    process = start_stoker(*_SLOW.split(), "--run-name", "late", "--stop-deadline", "0.5")
    hang(process, tmp_path, "late")
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 143
    assert time.monotonic() - asked < 3
    assert "Not done within 0.5 s" in error
