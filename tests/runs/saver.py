"""A process that saves checkpoints until it is killed. Run by test_checkpoint_kill.py.

It imports torch once, then for every line on its input forks a child, prints the child's pid,
and prints how it ended. A line is `loop` (save until killed) or a number k (replace and prune the
newest checkpoint once, and die by SIGKILL at the k-th touch of the file system).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from stoker.runs import checkpoint


def checkpoint_at(step: int) -> checkpoint.Checkpoint:
    """A checkpoint in which every value is the step."""
    tensors = {"weight": torch.full((64, 64), float(step)), "step": torch.tensor(step)}
    return checkpoint.Checkpoint(tensors, {"env_steps": step}, {"seed": step})


def save_until_killed(parent: Path) -> None:
    step = checkpoint.list_steps(parent)[-1][0]
    while True:
        step += 1
        for _ in range(2):  # the second replaces the first
            checkpoint.save(parent / checkpoint.step_name(step), checkpoint_at(step))
        checkpoint.prune(parent, keep=2)


def replace_newest(parent: Path, die_at: int) -> None:
    touches = 0

    def watch(event: str, args: tuple[object, ...]) -> None:
        nonlocal touches
        if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            touches += 1
            if touches == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    step = checkpoint.list_steps(parent)[-1][0]
    checkpoint.save(parent / checkpoint.step_name(step), checkpoint_at(step))
    checkpoint.save(parent / checkpoint.step_name(step + 1), checkpoint_at(step + 1))
    checkpoint.prune(parent, keep=1)


def main(parent: Path) -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            if line.strip() == "loop":
                save_until_killed(parent)
            else:
                replace_newest(parent, int(line))
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
