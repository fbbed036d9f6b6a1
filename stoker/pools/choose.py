"""Which pool: time a few steps, compare what each would cost, and say why."""

from __future__ import annotations

import os
import time
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from stoker.errors import EnvError
from stoker.pools.rows import Rows
from stoker.pools.slot import Slot, episode_seed, reset_env
from stoker.pools.spaces import ActionCodec, describe_env
from stoker.types import EnvSpec

HANDOVER_S = 38e-6
"""What a step through the process pool costs for waking and answering, whatever the workers do."""
HANDOVER_PER_WORKER_S = 8e-6
"""And this for each worker: 46, 54 and 71 us a step with 1, 2 and 4 workers on 16 cores
(`python -m bench handover`, bench/results/handover-gpu.json)."""


PoolKind = Literal["inline", "process"]


class Probe(NamedTuple):
    """What one environment showed when it was tried."""

    spec: EnvSpec
    step_wall_s: float


class Choice(NamedTuple):
    """A pool, how many workers, and the reason in words."""

    pool: PoolKind
    n_workers: int
    reason: str


def probe(name: str, env: gymnasium.Env[Any, Any], seconds: float = 0.1) -> Probe:
    """Describe `env` and time its steps (resets included) with random actions.

    It is stepped as environment 0 of a pool is, so that its faults are named likewise.
    """
    _, info = reset_env(env, 0, episode_seed(0, 0, 0))
    spec = describe_env(name, env, info)
    rows = Rows(spec, 1)
    slot = Slot(lambda: env, rows, 0)
    slot.start(seed=0, episode=0)
    env.action_space.seed(0)
    taken, began = 0, time.perf_counter()
    while taken < 3 or (taken < 1000 and time.perf_counter() - began < seconds):
        mask = rows.action_mask
        rows.action[0] = env.action_space.sample() if mask is None else _allowed(mask[0], spec)
        try:
            slot.step()
        except EnvError:
            if taken < 3:
                raise
            break  # one that fails now and then is for the pool to mend
        taken += 1
    return Probe(spec, (time.perf_counter() - began) / taken)


def _allowed(mask: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The first choice of each action that the mask [M] allows."""
    columns = np.split(mask, np.cumsum(spec.action.nvec)[:-1])
    choice = np.array([[column.argmax() for column in columns]])
    return ActionCodec(spec.action).encode(choice)[0]


def choose(
    step_wall_s: float,
    n_envs: int,
    cores: int,
    n_workers: int = 0,
    asked: PoolKind | Literal["auto"] = "auto",
) -> Choice:
    """The quicker pool for `n_envs` environments that take `step_wall_s` a step, or that asked."""
    workers = min(n_workers or cores, n_envs)
    inline = n_envs * step_wall_s
    per_worker = -(-n_envs // workers)
    process = per_worker * step_wall_s + HANDOVER_S + workers * HANDOVER_PER_WORKER_S
    costs = f"a step takes {step_wall_s * 1e6:,.0f} us"
    if n_envs > 1:
        costs += (
            f": {n_envs} one after the other {inline * 1e3:.2f} ms, in {workers} worker processes "
            f"{process * 1e3:.2f} ms"
        )
    pool: PoolKind = "process" if process < inline else "inline"
    if asked != "auto":
        pool, costs = asked, f"asked for; {costs}"
    return Choice(pool, workers if pool == "process" else 0, costs)


def usable_cores() -> int:
    """Cores this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
