"""Environments that wait: how much of in flight / latency the io pool reaches.

Blocking environments in threads and others as coroutines, against Stable-Baselines3 with a process
each; and what one that stops for 5 s costs the others. A step waits and does nothing else.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil

from bench.record import Cases, Row
from bench.turns import by_turns, is_worker, middle_ratio, version_of
from bench.waiting import Awaiting, Waiting
from stoker.pools.choose import probe
from stoker.pools.process import ProcessPool
from stoker.pools.worker import Waits

_IN_FLIGHT, _COROUTINES, _PROCESSES = 256, 1024, 32
_REPEATS, _SECONDS = 5, 4.0


def _latency(seconds: float) -> Iterator[Row]:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    before = _family()
    threads = _pool(Waiting, seconds, _IN_FLIGHT, "in threads")
    in_threads = _family() - before
    coroutines = _pool(Awaiting, seconds, _COROUTINES, "as coroutines")
    as_coroutines = _family() - before - in_threads
    ours = before | in_threads | as_coroutines
    peer = SubprocVecEnv([partial(Waiting, seconds)] * _PROCESSES)
    peer.reset()
    memory = {
        "in threads": _megabytes(in_threads),
        "as coroutines": _megabytes(as_coroutines),
        "SubprocVecEnv": _megabytes(_family() - ours),
    }
    found = by_turns(
        {
            "in threads": lambda: _rate(threads),
            "as coroutines": lambda: _rate(coroutines),
            "SubprocVecEnv": lambda: _peer_rate(peer),
        },
        _REPEATS,
    )
    for closing in (threads, coroutines, peer):
        closing.close()
    for how, in_flight in (("in threads", _IN_FLIGHT), ("as coroutines", _COROUTINES)):
        rates, theirs, ceiling = found[how], found["SubprocVecEnv"], in_flight / seconds
        yield Row(
            "io",
            f"{seconds * 1e3:g} ms a step, {in_flight} in flight {how}",
            round(statistics.median(rates)),
            "steps/s",
            round(statistics.median(theirs)),
            f"stable-baselines3 SubprocVecEnv {version_of('stable-baselines3')}, "
            f"{_PROCESSES} processes",
            round(middle_ratio(rates, theirs), 2),
            round(ceiling),
            {
                "share_of_ceiling": round(statistics.median(rates) / ceiling, 3),
                "ours": [round(x) for x in rates],
                "peer": [round(x) for x in theirs],
                "workers_mb": {"ours": memory[how], "peer": memory["SubprocVecEnv"]},
                "workers": _workers(),
            },
        )


def _straggler(n_envs: int = 1000) -> Iterator[Row]:
    """Steps of the others, with and without one of them that always takes 5 s more."""
    pool = _pool(Waiting, 0.05, n_envs, "in threads")
    found = by_turns(
        {
            "with": lambda: _rate(pool, straggler=True),
            "without": lambda: _rate(pool),
        },
        _REPEATS,
    )
    pool.close()
    ours, without = found["with"], found["without"]
    yield Row(
        "io",
        f"{n_envs - 1} in flight beside one that takes 5 s",
        round(statistics.median(ours)),
        "steps/s of the others",
        round(statistics.median(without)),
        "the same without it",
        round(middle_ratio(ours, without), 3),
        round((n_envs - 1) / 0.05),
        {"with": [round(x) for x in ours], "without": [round(x) for x in without]},
    )


def _workers() -> int:
    return len(os.sched_getaffinity(0))


def _pool(kind: type[Waiting], seconds: float, n_envs: int, waits: Waits) -> ProcessPool:
    spec = probe(kind.__name__, kind(0.0), 0.0).spec
    pool = ProcessPool(partial(kind, seconds), spec, n_envs, _workers(), waits=waits)
    pool.reset(0)
    return pool


def _rate(pool: ProcessPool, straggler: bool = False) -> float:
    """Steps/s of all but the first, with whoever is ready sent on, as training does."""
    actions = np.zeros((pool.n_envs, 1), np.int64)
    actions[0] = straggler
    pool.send(actions, np.arange(pool.n_envs))
    taken, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < _SECONDS:
        ids = pool.recv(pool.handful, patience=pool.patience).env_ids
        taken += int(np.count_nonzero(ids))
        if ids.size:
            pool.send(actions[ids], ids)
    pool.recv(pool.n_envs)
    return taken / spent * pool.n_envs / (pool.n_envs - 1)


def _peer_rate(peer: Any) -> float:
    actions, steps, began = np.zeros(_PROCESSES, np.int64), 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < _SECONDS:
        peer.step(actions)
        steps += _PROCESSES
    return steps / spent


def _family() -> set[psutil.Process]:
    return {p for p in psutil.Process().children(recursive=True) if is_worker(p)}


def _megabytes(processes: set[psutil.Process]) -> float:
    return round(sum(p.memory_full_info().pss for p in processes) / 2**20, 1)


CASES: Cases = {
    **{f"{ms} ms": partial(_latency, ms / 1e3) for ms in (10, 50, 200)},
    "straggler": _straggler,
}
