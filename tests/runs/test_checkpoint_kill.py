"""Killed while saving, the newest valid checkpoint loads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stoker.runs import checkpoint

ROOT = Path(__file__).parents[2]
KILLS = 50


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A checkpoints folder with step 0 in it."""
    first = checkpoint.Checkpoint(
        {"weight": torch.zeros(64, 64), "step": torch.tensor(0)}, {"env_steps": 0}, {"seed": 0}
    )
    (tmp_path / "checkpoints").mkdir()
    checkpoint.save(tmp_path / "checkpoints" / checkpoint.step_name(0), first)
    return tmp_path / "checkpoints"


class Saver:
    """The helper process, and its children one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def start(self, order: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return int(self.read())


@pytest.fixture
def saver(parent: Path) -> Iterator[Saver]:
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("saver.py")), str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Saver(process)
        finally:
            process.kill()


def newest_step(parent: Path) -> int:
    """The step of the newest checkpoint, once all that are listed load and are of one step each."""
    for listed, path in checkpoint.list_steps(parent):
        assert checkpoint.load(path).state == {"env_steps": listed}
    _, loaded = checkpoint.load_newest(parent)
    step = loaded.state["env_steps"]
    assert loaded.config == {"seed": step}
    assert loaded.tensors["step"].item() == step
    assert torch.equal(loaded.tensors["weight"], torch.full((64, 64), float(step)))
    return int(step)


@pytest.mark.filterwarnings("error:Skipped a damaged checkpoint")
def test_fifty_kills_at_random_moments_never_lose_the_newest(parent: Path, saver: Saver) -> None:
    rng = random.Random(0)
    newest, cut_off = 0, 0
    for _ in range(KILLS):
        child = saver.start("loop")
        time.sleep(rng.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        assert saver.read() == str(-signal.SIGKILL)
        step = newest_step(parent)
        assert step >= newest, "a finished checkpoint was lost"
        newest = step
        cut_off += any(parent.glob(".tmp-*"))
    assert newest > KILLS // 5, "the savers hardly ever finished a save, so this proved little"
    assert cut_off > KILLS // 5, "hardly a kill came in the middle of a save"
    checkpoint.prune(parent, keep=1)
    assert [path.name for path in parent.iterdir()] == [checkpoint.step_name(newest)]


@pytest.mark.filterwarnings("error:Skipped a damaged checkpoint")
def test_a_kill_at_any_touch_of_the_disk_leaves_the_old_or_the_new(
    parent: Path, saver: Saver
) -> None:
    newest, replaced = 0, 0
    for die_at in range(1, 200):
        saver.start(str(die_at))
        ended = saver.read()
        step = newest_step(parent)
        assert step in (newest, newest + 1)
        newest = step
        replaced += checkpoint.list_steps(parent)[-1][1].name.startswith(".replaced-")
        if ended == "0":
            break
    else:
        pytest.fail("the saver never came to its end")
    assert die_at > 30, "too few instants were tried"
    assert replaced, "no kill came between the two renames of a replacement"
    # What the dead left in the way goes with the first pruning after them.
    assert [path.name for path in parent.iterdir()] == [checkpoint.step_name(newest)]
