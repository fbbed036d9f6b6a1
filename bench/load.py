"""Environments with a set cost, and what environments give with nobody to answer to."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
SETTLES_S = 0.5
"""In which a core that has idled comes to the speed that it keeps."""
_NICE = 5  # as a pool's workers


class Busy(gymnasium.Env[Any, Any]):
    """Keeps a core busy for `seconds` a step (of CPU time, so that load does not change it)."""

    observation_space = spaces.Box(-1, 1, (42,), np.float32)
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([9, 9, 9, 9])

    def __init__(self, seconds: float = 1e-3) -> None:
        self.seconds = seconds
        self.obs = np.linspace(-1, 1, 42, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.obs, {}

    def step(self, action: Any) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return self.obs, 0.0, False, False, {}


class Straggler(Busy):
    """Steps in 0.1 ms; the action 1 takes `pause` seconds more, asleep."""

    action_space = spaces.Discrete(2)

    def __init__(self, pause: float = 5.0) -> None:
        super().__init__(1e-4)
        self.pause = pause

    def step(self, action: Any) -> Any:
        if action == 1:
            time.sleep(self.pause)
        return super().step(action)


class Episode(NamedTuple):
    """A whole one, to be made again."""

    seed: int
    actions: np.ndarray  # [L, ...], as the environment takes them


class Alone:
    """One environment a core, without a pool: what there is to reach.

    Its processes stay, so that it can be asked right after what it is compared with, and what they
    do in the first `settles_s` does not count: a machine that has idled for a moment is faster than
    one that works. That machine should have nothing else to do: other programs take cores from
    these as they do from a pool's workers, but a trainer has threads besides.
    """

    def __init__(self, make: MakeEnv, cores: int, settles_s: float = 0.0) -> None:
        context = multiprocessing.get_context("forkserver")
        self.cores, self._settles_s = cores, settles_s
        self._ends, self._processes = [], []
        for number in range(cores):
            ours, theirs = context.Pipe()
            process = context.Process(target=_step_on, args=(theirs, make, number), daemon=True)
            process.start()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def __call__(self, seconds: float = 2.0, episodes: Sequence[Episode] = ()) -> float:
        """Steps a second of all: of these episodes again and again, or of random actions.

        What a step costs may depend on what an agent does: one of a mission took 406 us at random
        and 458 us under a policy of 200,000 steps (two cores).
        """
        for number, end in enumerate(self._ends):
            mine = episodes[number :: len(self._ends)]
            end.send((self._settles_s, seconds, mine or episodes))
        return sum(end.recv() for end in self._ends)

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send(None)
            process.join()

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _step_on(end: Connection, make: MakeEnv, seed: int) -> None:
    os.nice(_NICE)
    env = make()
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(1000)]
    end.send("ready")
    while (asked := end.recv()) is not None:
        settles_s, seconds, episodes = asked
        parts = _again(env, episodes) if episodes else _at_random(env, actions, seed)
        _rate(parts, settles_s)
        end.send(_rate(parts, seconds))


def _rate(parts: Iterator[int], seconds: float) -> float:
    """Steps a second."""
    next(parts)
    steps, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        steps += next(parts)
    return steps / took


def _at_random(env: gymnasium.Env[Any, Any], actions: list[Any], seed: int) -> Iterator[int]:
    """Steps, some at a time: how many."""
    endless = itertools.cycle(actions)
    env.reset(seed=seed)
    while True:
        for action in itertools.islice(endless, 20):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        yield 20


def _again(env: gymnasium.Env[Any, Any], episodes: Sequence[Episode]) -> Iterator[int]:
    """Steps, an episode at a time: how many."""
    scalars = isinstance(env.action_space, gymnasium.spaces.Discrete)
    played = [(e.seed, e.actions.tolist() if scalars else list(e.actions)) for e in episodes]
    for episode_seed, actions in itertools.cycle(played):
        env.reset(seed=episode_seed)
        for action in actions:  # a Python number, as pools give it, or an array
            env.step(action)
        yield len(actions)
