"""What `stoker monitor` shows at a moment, and how it is written down."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stoker.monitor.records import GpuSample, HostSample, figures_of
from stoker.monitor.sampler import Sampler
from stoker.runs.reader import RunSummary, summarise


class GpuNow(NamedTuple):
    """A GPU, or a part of one, and what it did since the last snapshot."""

    number: int
    name: str
    uuid: str | None
    sample: GpuSample


class Snapshot(NamedTuple):
    """A machine, and a run on it if one was named."""

    time: float
    """Unix time, in seconds."""
    gpus: tuple[GpuNow, ...]
    why_no_gpu: str | None
    host: HostSample
    run: RunSummary | None


def take_snapshot(sampler: Sampler, run: Path | None, began: float, ended: float) -> Snapshot:
    """Means between two moments of `time.monotonic`; of the host, the newest where none is new."""
    gpus = tuple(
        GpuNow(
            gpu.number,
            gpu.name,
            gpu.uuid,
            gpu.series.between(began, ended) or GpuSample(ended),
        )
        for gpu in sampler.gpus
    )
    host = sampler.host.between(began, ended) or sampler.host.latest or HostSample(ended)
    summary = None if run is None else summarise(run)
    return Snapshot(time.time(), gpus, sampler.trouble, host, summary)


def as_object(shot: Snapshot) -> dict[str, Any]:
    """For a line of JSON; null is unknown."""
    gpus = [{**_named(gpu), **dict(figures_of(gpu.sample))} for gpu in shot.gpus]
    run = None if shot.run is None else {**shot.run._asdict(), "path": str(shot.run.path)}
    return {
        "time": shot.time,
        "gpus": gpus,
        "why_no_gpu": shot.why_no_gpu,
        "host": dict(figures_of(shot.host)),
        "run": run,
    }


def _named(gpu: GpuNow) -> dict[str, Any]:
    return {"number": gpu.number, "name": gpu.name, "uuid": gpu.uuid}


def as_row(shot: Snapshot) -> dict[str, Any]:
    """For a row of a table, by the names of its columns; "" is unknown."""
    cells = {"time": shot.time, **dict(_cells(shot))}
    return {name: "" if value is None else value for name, value in cells.items()}


def _cells(shot: Snapshot) -> Iterator[tuple[str, Any]]:
    """GPUs by their place, since parts of one share its number."""
    for place, gpu in enumerate(shot.gpus):
        yield f"gpu{place}_name", gpu.name
        for name, value in figures_of(gpu.sample):
            yield f"gpu{place}_{name}", "; ".join(value) if isinstance(value, tuple) else value
    for name, value in figures_of(shot.host):
        if name != "cores":
            yield f"host_{name}", value
    cores = shot.host.cores or (None,) * (os.cpu_count() or 0)  # the first row names all columns
    for core, share in enumerate(cores):
        yield f"host_core{core}", share
    if shot.run is not None:
        for name in ("state", "env_steps", "sps", "reward"):
            yield f"run_{name}", getattr(shot.run, name)
