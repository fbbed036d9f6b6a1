"""What the machine does while a run trains: from samples to metrics, and to the timeline."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from stoker.config.schema import Config
from stoker.monitor.phases import PhaseClock
from stoker.monitor.records import GpuSample, figures_of
from stoker.monitor.sampler import Sampler
from stoker.monitor.tape import Tape
from stoker.runs.folder import RunFolder
from stoker.runs.timeline import TimelineFile

_FRESH_S = 1.0  # a sample that is older, because the driver hangs, says nothing of now
_UNLOGGED = ("memory_total_gib", "throttle")


class Watch:
    """Metrics of the GPU that a run trains on, and its timeline; what is unknown is left out."""

    def __init__(
        self,
        sampler: Sampler,
        has_gpu: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler, self._has_gpu, self._clock = sampler, has_gpu, clock
        self._started = False
        self._timeline: TimelineFile | None = None
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def begin_anew(self) -> None:
        """Count from now on; the first time, sampling begins, if there is a GPU."""
        if self._has_gpu:
            self._start()
        self._begin()

    def _start(self) -> None:
        if not self._started:
            self._sampler.start()
            self._started = True

    def begin_timeline(
        self, folder: RunFolder, clocks: Mapping[str, PhaseClock], trained_s: Callable[[], float]
    ) -> None:
        """Write down what each thread does, by its clock, on from where the run is."""
        self._timeline = TimelineFile(folder, trained_s())  # which takes a while to read
        self._sampler.tape = Tape(clocks, self._timeline.add, trained_s())
        self._start()

    def end_timeline(self) -> None:
        """Write what is left of it."""
        tape, self._sampler.tape = self._sampler.tape, None
        if tape is not None and tape.close() and self._timeline is not None:
            self._timeline.close()

    @property
    def trouble(self) -> str | None:
        """Why the timeline cannot be written, if so."""
        return None if self._timeline is None else self._timeline.trouble

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


def watch_over(config: Config, device: torch.device) -> Watch | None:
    """For a run, unless it is not wanted; nothing is sampled before it begins."""
    if not config.run.monitor:
        return None
    has_gpu = device.type == "cuda"
    uuid = str(torch.cuda.get_device_properties(device).uuid) if has_gpu else None
    return Watch(Sampler(uuid=uuid, gpus=has_gpu, cores=True, pid=os.getpid()), has_gpu)
