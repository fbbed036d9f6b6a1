"""What the GPU does while a run trains: from samples to metrics."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from stoker.config.schema import Config
from stoker.monitor.records import GpuSample, figures_of
from stoker.monitor.sampler import Sampler

_FRESH_S = 1.0  # a sample that is older, because the driver hangs, says nothing of now
_UNLOGGED = ("memory_total_gib", "throttle")


class GpuWatch:
    """Metrics of the GPU that a run trains on; what is unknown is left out."""

    def __init__(self, sampler: Sampler, clock: Callable[[], float] = time.monotonic) -> None:
        self._sampler, self._clock = sampler, clock
        self._started = False
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def begin_anew(self) -> None:
        """Count from now on; the first time, sampling begins."""
        if not self._started:
            self._sampler.start()
            self._started = True
        self._begin()

    def metrics(self) -> dict[str, float]:
        """Means since the last call by their names in a log; within a moment, the newest sample."""
        now, since = self._clock(), self._since
        gpus = self._sampler.gpus
        if not gpus:
            return {}
        series = gpus[0].series
        sample, self._since = series.between(since, now) or series.latest, now
        figures = _figures(sample) if sample is not None and now - sample.at < _FRESH_S else {}
        for name, value in figures.items():
            self._sums[name] += (now - since) * value
            self._seconds[name] += now - since
        return {f"gpu/{name}": value for name, value in figures.items()}

    def overall(self) -> dict[str, float]:
        """Means since the start of what `metrics` has told, by the names without `gpu/`."""
        return {name: total / (self._seconds[name] or 1.0) for name, total in self._sums.items()}

    def close(self) -> None:
        self._sampler.close()


def _figures(sample: GpuSample) -> dict[str, float]:
    known = {n: v for n, v in figures_of(sample) if v is not None and n not in _UNLOGGED}
    if sample.throttle is not None:
        known["throttled"] = float(bool(sample.throttle))
    return known


def watch_gpu(config: Config, device: torch.device) -> GpuWatch | None:
    """For a run on a GPU, unless it is not wanted; nothing is sampled before `begin_anew`."""
    if device.type != "cuda" or not config.run.monitor:
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return GpuWatch(Sampler(uuid=uuid, pid=os.getpid()))
