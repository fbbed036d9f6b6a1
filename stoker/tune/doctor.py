"""The doctor: measured probes of a job, and what follows from them, without training a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from stoker.config.schema import Config
from stoker.monitor.course import Course
from stoker.monitor.facts import machine_facts
from stoker.monitor.findings import Facts, Finding, find
from stoker.monitor.records import GpuSample
from stoker.monitor.sampler import Sampler
from stoker.monitor.verdict import Verdict, job_of, judge
from stoker.pools.rows import Rows
from stoker.train import devices
from stoker.train.overlap import Decision
from stoker.train.sizes import MemoryNeed, memory_need
from stoker.tune.compose import Composed, composed
from stoker.tune.pieces import Pieces, try_pieces, try_update
from stoker.tune.rehearsal import Rehearsal
from stoker.tune.shorten import factor_for, iteration_s, shortened, shortened_sizes
from stoker.types import EnvSpec

HORIZONS = (100_000, 500_000, 1_000_000)
"""Steps of the runs whose wall-clock time is always predicted."""
_ITERATION_S = 3.0
"""That a rehearsed iteration may take, by what the pieces say."""
_HANDLES, _HANDLES_A_WORKER = 64, 4
"""Files that a trainer has open, and how many more with each worker (measured: 12, and 4)."""

Tell = Callable[[str], None]
"""Told what is being done."""


class Diagnosis(NamedTuple):
    """What the probes found, and what follows from it."""

    config: Config
    decisions: list[Decision]
    findings: list[Finding]
    pieces: Pieces
    memory: MemoryNeed
    verdict: Verdict
    """On such a run once it is under way."""
    course: Course
    predicted_sps: float
    """Of a run with these settings, from its first step to its last."""
    predicted_wall_s: dict[int, float]
    """By the steps of a run; without building it, and evaluating it at the end."""
    shortened: int
    """How many times as short as the job's the rehearsed iterations were."""
    took_s: float


def diagnose(config: Config, tell: Tell = lambda _: None) -> Diagnosis:
    """Probe the job that `config` describes, for about a minute: what has begun is ended."""
    began = time.perf_counter()
    known = machine_facts()
    device = devices.find_device(config.compute.device)
    with ExitStack() as stack:
        sampler = None
        if device.type == "cuda":
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            sampler = stack.enter_context(Sampler(uuid=uuid, pid=os.getpid()))
        tell("building the parts of a run")
        rehearsal = stack.enter_context(Rehearsal(config))
        decisions, spec = list(rehearsal.parts.decisions), rehearsal.parts.pool.spec
        resolved = rehearsal.resolved
        tell("trying each piece: a step, a decision, an update")
        pieces = try_pieces(resolved, spec, device, on_host=not rehearsal.on_device)
        pieces, found = _rehearse(rehearsal, resolved, pieces, spec, tell)
        sample = (
            None
            if sampler is None or not sampler.gpus
            else sampler.gpus[0].series.between(0.0, time.monotonic())
        )
    facts = _facts(known, resolved, spec, device, pieces, sample)
    horizons = sorted({*HORIZONS, config.run.timesteps})
    agents, every = config.run.population, config.run.population * config.run.checkpoint_every
    walls = {steps: found.course.wall_s(agents * steps, every) for steps in horizons}
    made = found.course.steps(agents * config.run.timesteps)
    like = found.steady._replace(inference_at=pieces.inference_at)
    return Diagnosis(
        resolved,
        decisions,
        find(facts),
        pieces,
        memory_need(resolved, spec, device),
        judge(job_of(found.course.stretches[-1].costs, made, like)),
        found.course,
        made / walls[config.run.timesteps],
        walls,
        found.factor,
        time.perf_counter() - began,
    )


def _rehearse(
    whole: Rehearsal, config: Config, pieces: Pieces, spec: EnvSpec, tell: Tell
) -> tuple[Pieces, Composed]:
    """With rollouts as long as they are, or with shorter ones where those would take too long."""
    device = whole.parts.device
    factor = factor_for(config, iteration_s(config, pieces), _ITERATION_S)
    if whole.on_device and device.type == "cuda":  # where pieces run as they are, not as graphs
        factor = 1
    if factor == 1:
        return pieces, composed(whole, shortened(config, 1, pieces), tell)
    whole.close()
    size = shortened_sizes(config, factor)[1]
    if size not in pieces.update_at:
        tried = try_update(config, spec, device, size)
        pieces = pieces._replace(update_at={**pieces.update_at, size: tried})
    short = shortened(config, factor, pieces)
    with Rehearsal(short.config) as fewer:
        return pieces, composed(fewer, short, tell)


def _facts(
    known: dict[str, Any],
    config: Config,
    spec: EnvSpec,
    device: torch.device,
    pieces: Pieces,
    sample: GpuSample | None,
) -> Facts:
    """Of the machine, with what the job wants of it."""
    env, n_envs = pieces.env, config.env.n_envs
    workers = config.env.n_workers if config.env.in_processes else 0
    handles = _HANDLES + _HANDLES_A_WORKER * workers
    if config.env.pool == "io":  # each may have a connection of its own
        handles = max(handles, _HANDLES + -(-n_envs // max(1, workers)))
    return Facts(
        cores=devices.usable_cores(),
        workers=workers,
        learner_threads=config.compute.torch_threads,
        step_cores=None if env is None else env.step_cpu_s / env.step_wall_s,
        handles_needed=handles,
        shm_needed_gib=Rows.size(spec, n_envs) / 2**30 if workers else 0.0,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        torch_sees_gpu=torch.cuda.is_available(),
        wants_gpu=config.compute.device != "cpu",
        throttle=None if sample is None else sample.throttle,
        others_memory_gib=None if sample is None else sample.others_memory_gib,
        **known,
    )
