"""The inside of such a process: what it is asked for, and stretches of training that are timed.

A trainer trains in rounds of a few iterations and calls `after_round` when the device is done with
one. The first rounds warm up. Then a stretch is as many rounds as last for some seconds, and gives
one JSON line. With `--on-request` it begins at the first line on standard input, says when it is
warm, and trains for a stretch at every other line, so that several such processes can take turns;
else there is one stretch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, TextIO

_WARM_UP = 2  # rounds: the first builds everything, and some build on in the second


class Task(NamedTuple):
    """What is to be trained, and how long."""

    env: str
    envs: int  # of each agent
    steps: int
    arch: tuple[int, ...]
    agents: int
    precision: str
    executor: str
    iterations: int  # of a round
    seconds: float  # of a stretch, at least
    on_request: bool

    @property
    def batch(self) -> int:
        """Steps of an iteration, of one agent."""
        return self.envs * self.steps


class Stretches:
    """Counts rounds, times them, and says whether another is wanted."""

    def __init__(self, task: Task, packages: Sequence[str], answer: TextIO) -> None:
        self.task, self._answer = task, answer
        self.told: dict[str, Any] = {}
        """What else a trainer has to say."""
        self._versions = {name: version(name) for name in packages}
        self._warm_up_s = 0.0
        self._wanted = self._script(born=time.monotonic())

    def run(self, train: Callable[[], object]) -> None:
        """Call `train`, which trains for a round and waits for the device, as often as wanted."""
        train()
        while self.after_round():
            train()

    def after_round(self) -> bool:
        """A round is over: whether to go on."""
        return next(self._wanted, False)

    def _script(self, born: float) -> Iterator[bool]:
        """Stands still for every round that is to be trained."""
        for _ in range(_WARM_UP - 1):
            yield True
        self._warm_up_s = time.monotonic() - born
        if self.task.on_request:
            self._say({"warm_up_s": round(self._warm_up_s, 2)})
        for _ in sys.stdin if self.task.on_request else ("once",):
            yield True  # not timed: clocks may have fallen, and queues filled, while it waited
            yield from self._stretch()

    def _stretch(self) -> Iterator[bool]:
        rounds, began = 0, time.monotonic()
        while (ended := time.monotonic()) - began < self.task.seconds:
            yield True
            rounds += 1
        self._report(rounds * self.task.iterations, began, ended)

    def _report(self, iterations: int, began: float, ended: float) -> None:
        seconds = ended - began
        steps = iterations * self.task.batch * self.task.agents
        self._say(
            {
                "steps_per_s": round(steps / seconds),
                "seconds": round(seconds, 4),
                "iterations": iterations,
                "warm_up_s": round(self._warm_up_s, 2),
                # By a clock that all processes of a machine share: for whoever watched the GPU.
                "between": [began, ended],
                "versions": self._versions,
                **self.told,
            }
        )

    def _say(self, what: dict[str, Any]) -> None:
        print(json.dumps(what, allow_nan=False), file=self._answer, flush=True)


def main(train: Callable[[Task, Stretches], None], *packages: str) -> None:
    """Train as the arguments say, and print nothing but JSON lines."""
    task = _asked(sys.argv[1:])
    with open(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # trainers print, too
        if task.on_request:
            sys.stdin.readline()
        train(task, Stretches(task, packages, answer))


def _asked(arguments: list[str]) -> Task:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="tensor/CartPole-v1")
    parser.add_argument("--envs", type=int, default=2048, help="of each agent")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--arch", type=_sizes, default=(64, 64), help="hidden layers, as in 64,64")
    parser.add_argument("--agents", type=int, default=1, help="trained side by side")
    parser.add_argument("--precision", choices=("tf32", "fp32", "bf16"), default="tf32")
    parser.add_argument("--executor", default="auto", help="of ours: auto, eager, graph, compile")
    parser.add_argument("--iterations", type=int, default=10, help="of a round")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a stretch, at least")
    parser.add_argument("--on-request", action="store_true")
    return Task(**vars(parser.parse_args(arguments)))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))
