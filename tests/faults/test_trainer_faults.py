"""Faults of the trainer: losses that are not finite, and a disk that is full."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stoker.config import resolve
from stoker.errors import TrainingError
from stoker.runs import checkpoint as checkpoints
from stoker.train.build import build
from stoker.train.loop import run
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.start import train

Run = Callable[..., subprocess.CompletedProcess[str]]
_BAD = {
    "env": "tasks:Exploding",
    "device": "cpu",
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 2,
    "normalize_reward": False,
    "eval_episodes": 0,
    "checkpoint_every": 1_000_000,
}


@pytest.mark.parametrize("collect", ["step", "overlap"])
def test_updates_that_are_not_finite_are_skipped_and_counted(collect: str) -> None:
    parts = build(resolve({**_BAD, "timesteps": 96, "collect": collect}))
    session = Session(parts, None)
    before = {name: value.clone() for name, value in parts.policy.named_parameters()}
    run(session, lambda _: None, StopRequest(1.0))
    parts.close()
    assert session.counters.skipped_updates == 6
    for name, value in parts.policy.named_parameters():
        assert torch.equal(value, before[name])


def test_too_many_of_them_stop_a_run_that_has_no_checkpoint(tmp_path: Path) -> None:
    config = resolve({**_BAD, "timesteps": 9600, "max_bad_updates": 5, "runs_dir": str(tmp_path)})
    with pytest.raises(TrainingError, match="not finite"):
        train(config)
    (status,) = tmp_path.glob("*/status.json")
    assert json.loads(status.read_text())["state"] == "failed"


@pytest.mark.parametrize("collect", ["step", "overlap"])
def test_too_many_of_them_roll_back_once_and_then_stop(collect: str, tmp_path: Path) -> None:
    settings = {**_BAD, "timesteps": 96_000, "max_bad_updates": 5, "runs_dir": str(tmp_path)}
    settings["collect"] = collect
    # The probe takes a thousand steps; two good iterations are saved before rewards explode.
    config = resolve({**settings, "checkpoint_every": 32, "env_kwargs": {"after": 1300}})
    import tasks

    tasks.Exploding.made = 0
    with (
        pytest.warns(UserWarning, match="Rolling back to step-"),
        pytest.raises(TrainingError, match="not finite"),
    ):
        train(config)
    (run_folder,) = tmp_path.iterdir()
    _, saved = checkpoints.load_newest(run_folder / "checkpoints")
    for name, tensor in saved.tensors.items():
        if tensor.is_floating_point():
            assert torch.isfinite(tensor).all(), name


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 600 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True
        ).returncode
    ):
        pytest.skip("a small disk can only be mounted by root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_does_not_stop_training(small_disk: Path, stoker: Run) -> None:
    # A checkpoint takes about 250 kB: two fit, and then there is no room for a third.
    words = "train --timesteps 4096 --device cpu --n-steps 256 --network-arch 96,96 --run-name full"
    more = f"--runs-dir {small_disk} --checkpoint-every 256 --keep-checkpoints 5 --eval-episodes 0"
    ended = stoker(*words.split(), *more.split())
    assert ended.returncode == 0, ended.stderr
    assert "the next save will be tried as usual. Training goes on." in ended.stderr
    assert "error: How the run ended is not saved. Its checkpoints are older." in ended.stderr
    assert "Traceback" not in ended.stderr
    status = json.loads((small_disk / "full/status.json").read_text())
    assert status["state"] == "finished"
    assert status["env_steps"] == 4096
    assert "No space left" in status["trouble"]
    _, saved = checkpoints.load_newest(small_disk / "full/checkpoints")
    assert 0 < saved.state["counters"]["env_steps"] < 4096


def test_a_run_of_which_nothing_is_saved_is_a_failure(small_disk: Path, stoker: Run) -> None:
    words = (
        "train --timesteps 512 --device cpu --n-steps 256 --network-arch 512,512 --run-name gone"
    )
    ended = stoker(*words.split(), "--runs-dir", str(small_disk), "--eval-episodes", "0")
    assert ended.returncode == 1, ended.stderr
    assert "How the run ended is not saved. There is no checkpoint of it." in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_disk_that_is_full_from_the_start_is_told_of_and_takes_no_name(
    small_disk: Path, stoker: Run
) -> None:
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    words = "train --timesteps 256 --device cpu --n-steps 256 --network-arch 8 --run-name early"
    words += f" --runs-dir {small_disk} --eval-episodes 0"
    ended = stoker(*words.split())
    assert ended.returncode == 2, ended.stderr
    assert "Make room there, or choose another place with --runs-dir." in ended.stderr
    assert "Traceback" not in ended.stderr
    filler.unlink()
    ended = stoker(*words.split())
    assert ended.returncode == 0, ended.stderr


CUT_ALWAYS = """
import gymnasium
from stoker.errors import EpisodeCutError
from tasks import Count

class CutAlways(Count):
    made = 0
    def step(self, action):
        self.made += 1
        if self.made > 3:
            raise EpisodeCutError("nobody answers.")
        return super().step(action)
"""


def test_a_run_in_which_nothing_comes_of_any_step_ends(tmp_path: Path) -> None:
    (tmp_path / "cutting.py").write_text(CUT_ALWAYS)
    words = "train --env cutting:CutAlways --timesteps 100k --n-envs 2 --n-steps 4 --batch-size 8 "
    words += "--n-epochs 1 --network-arch 8 --pool inline --eval-episodes 0 --device cpu"
    ended = subprocess.run(
        [sys.executable, "-m", "stoker", *words.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1
    assert "None of the steps of the last 100 rollouts came to anything" in ended.stderr
