"""The inside of such a process: what it is asked for, and stretches of training that are timed.

A trainer trains in rounds of a few iterations and calls `after_round` when the device is done with
one. The first rounds warm up. Then a stretch is as many rounds as last for some seconds, and gives
one JSON line. With `--on-request` it begins at the first line on standard input, says when it is
warm, and trains for a stretch at every other line, so that several such processes can take turns;
else there is one stretch. With `--learn-steps` it does not repeat itself: after the first round it
waits for a line, trains on until it has made so many steps and has reached `--goal` or given up,
and says how the reward rose.
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
_MOST_POINTS = 40  # of a curve


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
    epochs: int = 4
    minibatches: int = 4  # of an epoch
    lr: float = 3e-4
    seed: int = 0
    learn_steps: int = 0  # after which the reward is asked for; 0 measures speed alone
    goal: float | None = None  # a reward
    most_s: float = 30.0  # seconds after which learning is given up
    own: bool = False  # whether a peer does what its documentation advises for speed

    @property
    def batch(self) -> int:
        """Steps of an iteration, of one agent."""
        return self.envs * self.steps

    @property
    def minibatch(self) -> int:
        """Steps of an update, of one agent."""
        return self.batch // self.minibatches

    @property
    def round_steps(self) -> int:
        """Of all agents."""
        return self.iterations * self.batch * self.agents


class Point(NamedTuple):
    """Of a learning curve."""

    seconds: float
    steps: int
    reward: float | None  # the mean of the last episodes; None before any has ended


class Stretches:
    """Counts rounds, times them, and says whether another is wanted."""

    def __init__(self, task: Task, packages: Sequence[str], answer: TextIO) -> None:
        self.task, self._answer = task, answer
        self.told: dict[str, Any] = {}
        """What else a trainer has to say."""
        self.updates: Callable[[], int | None] = lambda: None
        """Steps that its optimisers have made, where they are counted: all are to make as many."""
        self.reward: Callable[[], float | None] = lambda: None
        """The mean reward of the last episodes, which is asked for where it learns."""
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
        if self.task.learn_steps:
            yield from self._learning()
            return
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

    def _learning(self) -> Iterator[bool]:
        self._say({"first_round_at": time.monotonic()})
        if self.task.on_request and not sys.stdin.readline():
            return
        curve, began = [Point(0.0, self.task.round_steps, self.reward())], time.monotonic()
        while not learned_enough(self.task, curve):
            yield True
            seconds = time.monotonic() - began
            curve.append(Point(seconds, curve[-1].steps + self.task.round_steps, self.reward()))
        updates, iterations = self.updates(), len(curve) * self.task.iterations
        made = None if updates is None else round(updates / iterations, 2)
        found = {**learned(self.task, curve), "optimiser_steps": made}  # of an iteration
        self._say({**found, "versions": self._versions, **self.told})

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


def learned_enough(task: Task, curve: Sequence[Point]) -> bool:
    """Whether the steps are made and the goal is reached, or the time is up."""
    if curve[-1].seconds > task.most_s:
        return True
    return curve[-1].steps >= task.learn_steps and (task.goal is None or _reached(task, curve))


def _reached(task: Task, curve: Sequence[Point]) -> bool:
    return any(at_goal(task, point) for point in curve)


def at_goal(task: Task, point: Point) -> bool:
    """Whether there is a goal, and this is it."""
    return task.goal is not None and point.reward is not None and point.reward >= task.goal


def learned(task: Task, curve: Sequence[Point]) -> dict[str, Any]:
    """What a curve says: the reward after so many steps, and when the goal was reached."""
    late = [point.reward for point in curve if point.steps >= task.learn_steps]
    first = next((point for point in curve if at_goal(task, point)), None)
    every = -(-len(curve) // _MOST_POINTS)
    return {
        "steps": task.learn_steps,
        "reward": round(late[0], 2) if late and late[0] is not None else None,
        "goal_s": round(first.seconds, 3) if first else None,
        "goal_steps": first.steps if first else None,
        "learning_s": round(curve[-1].seconds, 2),
        "learned_steps": curve[-1].steps,
        "curve": [
            [round(p.seconds, 2), p.steps, None if p.reward is None else round(p.reward, 1)]
            for p in curve[::every]
        ],
    }


def main(train: Callable[[Task, Stretches], None], *packages: str) -> None:
    """Train as the arguments say, and print nothing but JSON lines."""
    task = asked(sys.argv[1:])
    with open(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # trainers print, too
        if task.on_request:
            sys.stdin.readline()
        train(task, Stretches(task, packages, answer))


def asked(arguments: list[str]) -> Task:
    """The task that a command line describes."""
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
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=4, help="of an epoch")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learn-steps", type=int, default=0, help="learn, for at least so many")
    parser.add_argument("--goal", type=float, help="a reward to reach where it learns")
    parser.add_argument("--most-s", type=float, default=30.0, help="of learning, at most")
    parser.add_argument("--own", action="store_true", help="as the peer's own documents advise")
    return Task(**vars(parser.parse_args(arguments)))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))
