"""Which pool: time a few steps, compare what each would cost, and say why."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from stoker.config.numbers import counted
from stoker.errors import EnvError, EpisodeCutError
from stoker.pools.awaited import as_blocking, is_async
from stoker.pools.returned import reset_env
from stoker.pools.rows import Rows
from stoker.pools.slot import Slot, episode_seed
from stoker.pools.spaces import ActionCodec, describe_env
from stoker.pools.worker import Waits
from stoker.types import EnvSpec

try:
    import resource
except ImportError:  # of Unix alone
    resource = None  # type: ignore[assignment]

HANDOVER_S = 38e-6
"""What a step through the process pool costs for waking and answering, whatever the workers do."""
HANDOVER_PER_WORKER_S = 8e-6
"""And this for each worker: 46, 54 and 71 us a step with 1, 2 and 4 workers on 16 cores
(`python -m bench handover`, bench/results/handover-gpu.json)."""


IO_STEP_S = 100e-6
"""Of a core, about what a step through the io pool costs besides the environment's own time: two
cores made 20,900 a second in threads when they were full (bench/results/io-cpu.json)."""
_CLEARLY_LESS = 0.8
_WORTH_WAKING_S = 1e-4
"""Processes must save a fifth, and this: timings wander, the trainer needs a core, too, and whoever
is woken waits for one."""
_MOST_IN_FLIGHT = 1024
_LONG_S = 10.0  # in which an environment that works has been tried
_MOST_CUTS = 10  # episodes that may be cut off while it is tried
_SHORTEST_WAIT_S = 1e-3
"""Waits that are shorter are not worth a thread each."""
_SELDOM = 0.05  # rests a step: one that is done in twenty
_UNEVEN_S, _UNEVEN = 1e-3, 3.0
"""Steps are uneven if their deviation is more than a millisecond, and than three mean steps."""


PoolKind = Literal["inline", "process", "io", "ray"]


class Probe(NamedTuple):
    """What one environment showed when it was tried."""

    spec: EnvSpec
    step_wall_s: float
    step_cpu_s: float
    is_async: bool  # its step is a coroutine
    step_spread_s: float = 0.0  # deviation of its steps' wall time
    rests: float | None = None  # times a step that it gave its core away by itself, where known

    @property
    def waits(self) -> bool:
        """Whether it spends most of a step waiting, and not because others have its core."""
        waited = self.step_wall_s - self.step_cpu_s
        by_itself = self.rests is None or self.rests >= _SELDOM
        return by_itself and waited >= max(_SHORTEST_WAIT_S, self.step_cpu_s)

    @property
    def uneven(self) -> bool:
        """Whether some steps take so much longer than others that nobody should wait for them."""
        return self.step_spread_s > max(_UNEVEN_S, _UNEVEN * self.step_s)

    @property
    def step_s(self) -> float:
        """What a step takes while it has its core: others may have had it for some of the time."""
        kept = self.rests is not None and self.rests < _SELDOM
        return min(self.step_wall_s, self.step_cpu_s) if kept else self.step_wall_s

    def in_flight(self, cores: int) -> int:
        """How many keep the cores busy, by Little's law: a power of two."""
        full = cores * self.step_wall_s / (self.step_cpu_s + IO_STEP_S)
        return 2 ** int(math.log2(min(max(full, 1.0), _MOST_IN_FLIGHT)))


class Choice(NamedTuple):
    """A pool, how many workers, and the reason in words."""

    pool: PoolKind
    n_workers: int
    reason: str
    waits: Waits = "no"
    n_machines: int = 0
    """Of a Ray cluster, that the workers are on."""

    @property
    def described(self) -> str:
        """The pool in a few words."""
        workers = f", {counted(self.n_workers, 'worker')}" if self.n_workers else ""
        return (
            self.pool
            + workers
            + (f" on {counted(self.n_machines, 'machine')}" if self.n_machines else "")
        )


def probe(name: str, env: gymnasium.Env[Any, Any], seconds: float = 0.1) -> Probe:
    """Describe `env` and time its steps (resets included) with random actions.

    It is stepped as environment 0 of a pool is, so that its faults are named likewise.
    """
    with _told_if_it_takes_long(name):
        return _probe(name, env, seconds)


@contextlib.contextmanager
def _told_if_it_takes_long(name: str) -> Iterator[None]:
    """Nobody can end what this process itself has begun, so that it is not a blank screen."""

    def tell() -> None:
        with contextlib.suppress(Warning):  # where warnings are errors no thread ends of it
            warnings.warn(
                f"{name} is still being tried, after {_LONG_S:g} s: before training it is reset "
                "and stepped a few times in this process, where no deadline holds. If its first "
                "steps do not take that long, it hangs: Ctrl-C ends it.",
                stacklevel=2,
            )

    timer = threading.Timer(_LONG_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def closing(name: str, env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """`env`, closed in the end; what it raises then is told, and no reason not to go on."""
    try:
        yield env
    finally:
        try:
            env.close()
        except (Exception, SystemExit) as error:
            warnings.warn(
                f"{name} raised {type(error).__name__} in close(): {error}. Whatever it should "
                "have let go of may still be held.",
                stacklevel=2,
            )


def _probe(name: str, env: gymnasium.Env[Any, Any], seconds: float) -> Probe:
    coroutines, env = is_async(env), as_blocking(env)
    _, info = reset_env(env, 0, episode_seed(0, 0, 0))
    spec = describe_env(name, env, info)
    rows = Rows(spec, 1)
    slot = Slot(lambda: env, rows, 0)
    slot.start(seed=0, episode=0)
    env.action_space.seed(0)
    rested = _rests()
    rng, walls, cuts, wall, cpu = np.random.default_rng(0), list[float](), 0, 0.0, 0.0
    while len(walls) < 3 or (len(walls) < 1000 and wall < seconds):
        mask = rows.action_mask
        rows.action[0] = env.action_space.sample() if mask is None else _allowed(mask[0], spec, rng)
        began, worked = time.perf_counter(), time.process_time()
        try:
            slot.step()
        except EpisodeCutError:
            cuts += 1
            if cuts > _MOST_CUTS:
                raise
            slot.start(seed=0, episode=cuts)
            continue
        except EnvError:
            if len(walls) < 3:
                raise
            break  # one that fails now and then is for the pool to mend
        walls.append(time.perf_counter() - began)
        wall, cpu = wall + walls[-1], cpu + time.process_time() - worked
    taken, spread, rests = len(walls), float(np.std(walls)), _rests()
    by_itself = None if rests is None or rested is None else (rests - rested) / taken
    return Probe(spec, wall / taken, cpu / taken, coroutines, spread, by_itself)


def _rests() -> int | None:
    """How often this process has given a core away by itself; None where that is not counted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw if resource is not None else None


def _allowed(mask: np.ndarray, spec: EnvSpec, rng: np.random.Generator) -> np.ndarray:
    """A choice of each action that the mask [M] allows."""
    columns = np.split(mask, np.cumsum(spec.action.nvec)[:-1])
    choice = np.array([[rng.choice(np.flatnonzero(column)) for column in columns]])
    return ActionCodec(spec.action).encode(choice)[0]


def choose(
    found: Probe,
    n_envs: int,
    cores: int,
    n_workers: int = 0,
    asked: PoolKind | Literal["auto"] = "auto",
) -> Choice:
    """The quickest pool for `n_envs` environments such as the one that was tried, or that asked.

    How many workers a Ray cluster has room for is not known here: 0 leaves that to the pool.
    """
    workers = min(n_workers or cores, n_envs)
    step = found.step_s
    inline = n_envs * step
    process = -(-n_envs // workers) * step + HANDOVER_S + workers * HANDOVER_PER_WORKER_S
    pays = process < min(_CLEARLY_LESS * inline, inline - _WORTH_WAKING_S)
    pool: PoolKind = "process" if pays else "inline"
    if asked != "auto":
        pool = asked
    elif found.waits and n_envs > 1:
        pool = "io"
    costs = f"a step takes {step * 1e6:,.0f} us"
    if pool == "ray":
        return Choice(pool, n_workers, f"asked for; {costs}")
    if pool == "io":
        costs += (
            f", {step * 1e6 - found.step_cpu_s * 1e6:,.0f} of them waiting: {n_envs:,} in flight "
            f"give at most {n_envs / step:,.0f} a second"
        )
    elif n_envs > 1:
        costs += (
            f": {n_envs} one after the other {inline * 1e3:.2f} ms, "
            f"with {counted(workers, 'worker')} {process * 1e3:.2f} ms"
        )
    reason = costs if asked == "auto" else f"asked for; {costs}"
    if pool == "io":
        return Choice(pool, workers, reason, "as coroutines" if found.is_async else "in threads")
    return Choice(pool, workers if pool == "process" else 0, reason)


def usable_cores() -> int:
    """Cores this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
