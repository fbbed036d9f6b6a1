"""What candidates would cost, by the model of `monitor.verdict`, from one job that was measured."""

from __future__ import annotations

from typing import NamedTuple

from stoker.config.schema import Config
from stoker.monitor.verdict import Costs
from stoker.pools.choose import HANDOVER_PER_WORKER_S, HANDOVER_S, IO_STEP_S
from stoker.tune.pieces import Pieces


class Known(NamedTuple):
    """A job that was measured, and pieces of others."""

    config: Config
    costs: Costs
    pieces: Pieces
    """With decisions and updates of every size that candidates have."""
    threads: dict[int, float]
    """By threads of the learner, what an update takes over what it does with the job's own."""
    cores: int
    on_gpu: bool


def predicted(known: Known, config: Config) -> Costs:
    """What a step costs with `config`."""
    here, costs, cores = known.config, known.costs, known.cores
    fewer = here.env.n_envs / config.env.n_envs  # rounds that a rollout takes, over the job's
    parts = costs._replace(
        environments=_environments(known, config),
        handover=_handover(known, config),
        inference=costs.inference * _inference(known, config) / _inference(known, here),
        storing=costs.storing * fewer,
        learning=costs.learning * _update(known, config) / _update(known, here),
        overlapped=config.env.collect == "overlap",
    )
    if not parts.overlapped:
        return parts
    workers = max(1, config.env.n_workers)
    stepping = parts.environments * (1 if config.env.pool == "io" else workers)
    if config.env.pool == "ray":
        stepping = 0.0  # on other cores
    work = stepping + parts.handover + parts.inference + parts.storing
    work += 0.0 if known.on_gpu else parts.learning * config.compute.torch_threads
    crowded = work / cores  # however it is spread, the cores have to do it
    return parts._replace(learning=max(parts.learning, crowded))


def _environments(known: Known, config: Config) -> float:
    env, n_envs = known.pieces.env, config.env.n_envs
    if env is None:  # on the device, where launches count, not environments
        return known.costs.environments * known.config.env.n_envs / n_envs
    if config.env.pool == "io":
        at_once = min(known.cores, max(1, config.env.n_workers))
        return max(env.step_wall_s / n_envs, (env.step_cpu_s + IO_STEP_S) / at_once)
    if config.env.pool == "inline":
        return env.step_wall_s
    workers = max(1, config.env.n_workers)
    if config.env.in_processes:
        workers = min(known.cores, workers)
    return -(-n_envs // workers) * env.step_wall_s / n_envs


def _handover(known: Known, config: Config) -> float:
    if config.env.pool == "ray":
        return known.costs.handover  # only the network knows
    if config.env.pool != "process":
        return 0.0
    return (HANDOVER_S + config.env.n_workers * HANDOVER_PER_WORKER_S) / config.env.n_envs


def _inference(known: Known, config: Config) -> float:
    """A decision for one of as many as are decided for at once."""
    return known.pieces.inference_at[config.env.n_envs] / config.env.n_envs


def _update(known: Known, config: Config) -> float:
    """A row's share of an update."""
    size, threads = config.minibatch, config.compute.torch_threads
    return known.threads.get(threads, 1.0) * known.pieces.update_at[size] / size
