"""What may be set otherwise: candidates, as settings over those of a job."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from stoker.config.check import divisors
from stoker.config.names import KNOWN
from stoker.config.schema import Config
from stoker.pools.choose import Probe

Candidate = Mapping[str, Any]
"""Settings by name."""

_FEWEST_STEPS = 8
_MOST_ENVS = 8  # times as many as there are, or as few
_MOST_THREADS = 4


def applied(config: Config, candidate: Candidate) -> Config:
    """`config` with these settings."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in candidate.items():
        groups.setdefault(KNOWN[name].group, {})[name] = value
    return dataclasses.replace(
        config,
        **{
            group: dataclasses.replace(getattr(config, group), **settings)
            for group, settings in groups.items()
        },
    )


def candidates(
    config: Config, env: Probe | None, cores: int, on_gpu: bool, allow_learning: bool
) -> list[Candidate]:
    """All that could be set otherwise; with `allow_learning` what changes learning, too.

    `config` is resolved, so that its pool is known; `env` is None where environments step on the
    device.
    """
    sizes = list(_sizes(config, env, allow_learning))
    batches = list(_batches(config)) if allow_learning else [{}]
    threads = [{"torch_threads": n} for n in _powers(1, min(cores, _MOST_THREADS))]
    learning = [{}] if on_gpu else threads
    precisions: list[Candidate] = [{}]
    if env is None and on_gpu and allow_learning:
        precisions = [{"precision": name} for name in ("tf32", "bf16")]
    found: list[Candidate] = []
    for size, *rest in itertools.product(sizes, batches, learning, precisions):
        for where in _pools(int(size.get("n_envs", config.env.n_envs)), env, cores):
            whole = {**where, **size, **{k: v for part in rest for k, v in part.items()}}
            if applied(config, whole).total_batch % applied(config, whole).minibatch == 0:
                found.append(whole)
    return found


def _pools(n_envs: int, env: Probe | None, cores: int) -> Iterator[Candidate]:
    """Where environments step, and whether learning goes on meanwhile."""
    if env is None:
        yield {}
        return
    if env.waits and n_envs > 1:
        for workers, collect in itertools.product(_powers(1, cores), ("step", "overlap")):
            yield {"pool": "io", "n_workers": workers, "collect": collect}
        return
    yield {"pool": "inline", "n_workers": 0, "collect": "step"}
    most = min(cores, n_envs)
    for workers, collect in itertools.product(_powers(1, most), ("step", "overlap")):
        if n_envs > 1:
            yield {"pool": "process", "n_workers": workers, "collect": collect}


def _sizes(config: Config, env: Probe | None, allow_learning: bool) -> Iterator[Candidate]:
    """Environments and steps of rollouts that are as large as they are.

    Of environments that wait there are as many as are in flight, which `--pool auto` chooses, too.
    """
    waits = env is not None and env.waits
    if not allow_learning and not waits:
        yield {}
        return
    total, now = config.total_batch, config.env.n_envs
    for n_envs in divisors(total):
        is_near = max(1, now // _MOST_ENVS) <= n_envs <= now * _MOST_ENVS
        if n_envs & (n_envs - 1) == 0 and is_near and total // n_envs >= _FEWEST_STEPS:
            in_flight = {"in_flight": n_envs} if waits else {}
            yield {"n_envs": n_envs, "n_steps": total // n_envs, **in_flight}


def _batches(config: Config) -> Iterator[Candidate]:
    """Minibatches as large as they are, and twice as large or small."""
    for power in (-1, 0, 1):
        size = int(config.minibatch * 2.0**power)
        if size > 1 and config.total_batch % size == 0:
            yield {"batch_size": size}


def _powers(low: int, high: int) -> list[int]:
    """Powers of two between the two, and the higher of these."""
    return sorted({*itertools.takewhile(lambda n: n < high, (low << i for i in range(32))), high})
