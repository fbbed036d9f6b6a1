"""The process pool against the ones that people use, in one run, by turns.

CartPole-v1 against Stable-Baselines3's SubprocVecEnv and Gymnasium's AsyncVectorEnv, with the
ceiling of the environments alone, one process a core; an environment of 1 ms against that ceiling;
the memory of a worker; and what one environment that keeps stopping costs the others.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AsyncVectorEnv

from bench.load import Alone, Busy, Straggler
from bench.record import Cases, Row
from bench.turns import by_turns, is_worker, middle_ratio, version_of
from stoker.envs.registry import EnvFactory
from stoker.pools.choose import probe
from stoker.pools.process import ProcessPool

_REPEATS = 9
_SECONDS = 1.0
"""Of each measurement; all sides take turns, so that a change of the machine's mood hits each."""


def _cartpole(n_envs: int) -> Iterator[Row]:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    cores = len(os.sched_getaffinity(0))
    make = EnvFactory("CartPole-v1").unchecked()
    peer_make = partial(gymnasium.make, "CartPole-v1")
    actions = np.random.default_rng(0).integers(0, 2, size=(64, n_envs, 1))
    pool = ProcessPool(make, probe("CartPole-v1", make()).spec, n_envs, cores)
    subproc = SubprocVecEnv([peer_make] * n_envs)
    gymnasium_envs = AsyncVectorEnv([peer_make] * n_envs)
    alone = Alone(make, cores)
    pool.reset(0)
    subproc.reset()
    gymnasium_envs.reset(seed=0)
    flat = actions[:, :, 0]

    def step_subproc(turn: int) -> None:
        subproc.step(flat[turn % 64])

    def step_gymnasium(turn: int) -> None:
        gymnasium_envs.step(flat[turn % 64])

    sides = {
        "ours": lambda: _freely(pool, actions),
        "SubprocVecEnv": lambda: _in_step(step_subproc, n_envs),
        "AsyncVectorEnv": lambda: _in_step(step_gymnasium, n_envs),
        "ceiling": lambda: alone(_SECONDS),
    }
    found = by_turns(sides, _REPEATS)
    alone.close()
    pool.close()
    subproc.close()
    gymnasium_envs.close()
    ours, ceiling = found["ours"], found["ceiling"]
    for peer in ("SubprocVecEnv", "AsyncVectorEnv"):
        yield _row(f"CartPole-v1, {n_envs} envs, {cores} workers", ours, peer, found[peer], ceiling)


def _busy() -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0))
    n_envs = 8 * cores
    pool = ProcessPool(Busy, probe("Busy", Busy()).spec, n_envs, cores)
    peer = AsyncVectorEnv([Busy] * n_envs)
    alone = Alone(Busy, cores)
    pool.reset(0)
    peer.reset(seed=0)
    actions = np.zeros((64, n_envs, 4), np.int64)

    def step_gymnasium(turn: int) -> None:
        peer.step(actions[turn % 64])

    sides = {
        "ours": lambda: _freely(pool, actions),
        "AsyncVectorEnv": lambda: _in_step(step_gymnasium, n_envs),
        "ceiling": lambda: alone(_SECONDS),
    }
    found = by_turns(sides, _REPEATS)
    alone.close()
    pool.close()
    peer.close()
    case = f"1 ms of CPU a step, {n_envs} envs, {cores} workers"
    yield _row(case, found["ours"], "AsyncVectorEnv", found["AsyncVectorEnv"], found["ceiling"])


def _memory() -> Iterator[Row]:
    """Of a worker with one environment, beyond what it shares with others (PSS), and in all."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    make = EnvFactory("CartPole-v1").unchecked()
    sizes: dict[str, dict[str, float]] = {}
    for name, start in (
        ("ours", lambda: ProcessPool(make, probe("CartPole-v1", make()).spec, 4, 4)),
        ("SubprocVecEnv", lambda: SubprocVecEnv([partial(gymnasium.make, "CartPole-v1")] * 4)),
    ):
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        with_workers: Any = start()
        with_workers.reset(0) if name == "ours" else with_workers.reset()
        family = psutil.Process().children(recursive=True)
        workers = [p for p in family if p.pid not in before and is_worker(p)]
        found = [worker.memory_full_info() for worker in workers]
        sizes[name] = {
            "workers": len(found),
            "pss_mb": round(statistics.median(m.pss for m in found) / 2**20, 1),
            "rss_mb": round(statistics.median(m.rss for m in found) / 2**20, 1),
        }
        with_workers.close()
    ours, peer = sizes["ours"]["rss_mb"], sizes["SubprocVecEnv"]["rss_mb"]
    yield Row(
        "pools",
        "memory of a worker",
        ours,
        "MB resident, smaller is better",
        peer,
        f"stable-baselines3 SubprocVecEnv {version_of('stable-baselines3')}",
        round(peer / ours, 2),
        details=sizes,
    )


def _straggler(n_envs: int = 64) -> Iterator[Row]:
    """Steps of the other 63, with and without one that sleeps 5 s at every tenth of its own."""
    cores = len(os.sched_getaffinity(0))
    spec = probe("Straggler", Straggler()).spec
    pool = ProcessPool(Straggler, spec, n_envs, cores)
    pool.reset(0)
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        for with_pauses in (False, True):
            found[with_pauses].append(_others(pool, with_pauses, seconds=6.0))
    pool.close()
    ours, without = statistics.median(found[True]), statistics.median(found[False])
    yield Row(
        "pools",
        f"{n_envs - 1} envs beside one that sleeps 5 s at every tenth step",
        round(ours),
        "steps/s of the others",
        round(without),
        "the same without the sleeps",
        round(ours / without, 3),
        details={
            "with": [round(x) for x in found[True]],
            "without": list(map(round, found[False])),
        },
    )


def _others(pool: ProcessPool, with_pauses: bool, seconds: float) -> float:
    """Steps/s of all environments but the first, received whenever most of a group are done."""
    everyone = np.arange(pool.n_envs)
    pool.send(np.zeros((pool.n_envs, 1), np.int64), everyone)
    taken = own = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for group in pool.groups:
            size = group.stop - group.start
            batch = pool.recv(size - 1, among=group, patience=1.0)
            ids = batch.env_ids.copy()
            actions = np.zeros((len(ids), 1), np.int64)
            if ids.size and ids[0] == 0:
                own += 1
                actions[0] = with_pauses and own % 10 == 0
            taken += int((ids != 0).sum())
            pool.send(actions, ids)
    rate = taken / (time.perf_counter() - began)
    pool.recv(pool.n_envs)
    return rate


def _freely(pool: ProcessPool, actions: np.ndarray) -> float:
    """Steps/s with whoever is ready sent on, as overlapped training does."""
    pool.send(actions[0], np.arange(pool.n_envs))
    taken, turn, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        turn += 1
        ids = pool.recv(pool.handful).env_ids
        taken += len(ids)
        pool.send(actions[turn % 64, ids], ids)
    spent = time.perf_counter() - began
    pool.recv(pool.n_envs)
    return taken / spent


def _in_step(step: Callable[[int], None], n_envs: int) -> float:
    turn, began = 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        step(turn)
        turn += 1
    return turn * n_envs / (time.perf_counter() - began)


def _row(case: str, ours: list[float], peer: str, theirs: list[float], ceiling: list[float]) -> Row:
    """The ratio is the middle one of those taken side by side, as the machine wanders."""
    package = "gymnasium" if peer == "AsyncVectorEnv" else "stable-baselines3"
    return Row(
        "pools",
        case,
        round(statistics.median(ours)),
        "steps/s",
        round(statistics.median(theirs)),
        f"{package} {peer} {version_of(package)}",
        round(middle_ratio(ours, theirs), 2),
        round(statistics.median(ceiling)),
        {
            "share_of_ceiling": round(middle_ratio(ours, ceiling), 3),
            "ours": [round(x) for x in ours],
            "peer": [round(x) for x in theirs],
            "ceiling": [round(x) for x in ceiling],
        },
    )


CASES: Cases = {
    "CartPole-v1, 16": partial(_cartpole, 16),
    "CartPole-v1, 64": partial(_cartpole, 64),
    "CartPole-v1, 128": partial(_cartpole, 128),
    "1 ms": _busy,
    "memory": _memory,
    "straggler": _straggler,
}
