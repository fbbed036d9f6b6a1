"""The verdict on a run: what its clocks and its pool measured, for `monitor.verdict`."""

from __future__ import annotations

from stoker.collect.interleaved import InterleavedCollector
from stoker.monitor.verdict import Job, Verdict, judge
from stoker.pools.on_device import DevicePool
from stoker.train import devices
from stoker.train.overlap import OverlapTrial
from stoker.train.parts import Parts


def verdict_on(parts: Parts, steps: int) -> Verdict | None:
    """On the `steps` that were made since the clocks began, evaluations left out.

    None for none, and where environments step on the device: the host sees launches there, not what
    they take.
    """
    if not steps or isinstance(parts.pool, DevicePool):
        return None
    return judge(job_on(parts, steps))


def job_on(parts: Parts, steps: int, worked_before: float = 0.0) -> Job:
    """What was measured since the clocks began; workers had worked that long before."""
    clock, collect_clock, env = parts.clock, parts.collect_clock, parts.config.env
    elsewhere = collect_clock is not clock and parts.collector.ahead
    phases = dict(clock.total)
    evaluated = phases.pop("eval", 0.0)
    if collect_clock is not clock and not elsewhere:  # in step, but by another thread
        waited = phases.pop("wait", 0.0)
        phases |= _scaled(collect_clock.total, waited)
    worked = parts.pool.worked()
    return Job(
        wall_s=max(clock.elapsed() - evaluated, 1e-9),
        steps=steps,
        phases=phases,
        collecting=dict(collect_clock.total) if elsewhere else None,
        worked_s=None if worked is None else worked - worked_before,
        pool=env.pool,
        workers=env.n_workers if env.in_workers else 0,
        n_envs=parts.pool.n_envs,
        cores=devices.usable_cores(),
        on_gpu=parts.device.type == "cuda",
        overlap_tried=isinstance(parts.collector, InterleavedCollector)
        or (isinstance(parts.trial, OverlapTrial) and parts.trial.went_back),
    )


def _scaled(phases: dict[str, float], seconds: float) -> dict[str, float]:
    """Phases that sum to so many seconds."""
    whole = sum(phases.values())
    return {name: took * seconds / whole for name, took in phases.items()} if whole else {}
