"""What the monitor measures, as named records. None is unknown, never 0."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

MOST_SAMPLES = 6000
"""Samples that are kept: five minutes at 20 a second."""


class GpuSample(NamedTuple):
    """One GPU, or a part of one (MIG), at a moment; or means over a while. Shares are 0 to 1."""

    at: float
    """Seconds of `time.monotonic`; of means, when the last of them was taken."""
    busy: float | None = None
    """Share of time with any kernel running, in the driver's own window of 1/6 s or longer."""
    sm_active: float | None = None
    """Share of the multiprocessors, over time, that had work."""
    sm_occupancy: float | None = None
    """Warps in flight, as a share of the most there could be."""
    tensor: float | None = None
    """Share of time that tensor cores were at work."""
    dram: float | None = None
    """Share of the memory's bandwidth in use."""
    memory_used_gib: float | None = None
    """By everybody, with what the driver keeps for itself."""
    memory_total_gib: float | None = None
    own_memory_gib: float | None = None
    """Memory of the process that is watched."""
    others_memory_gib: float | None = None
    """Memory of all other processes."""
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why the clocks are held down, in words; () if nothing holds them."""


class HostSample(NamedTuple):
    """The machine beside its GPUs, at a moment; or means over a while. Shares are 0 to 1."""

    at: float
    """Seconds of `time.monotonic`; of means, when the last of them was taken."""
    cpu: float | None = None
    """Share of all cores in use."""
    cores: tuple[float, ...] | None = None
    """The same of each core."""
    process_cores: float | None = None
    """Cores' worth of time that the process that is watched takes; 1 is a whole core."""
    workers_cores: float | None = None
    """The same of all processes below it."""
    memory_used_gib: float | None = None
    memory_total_gib: float | None = None
    disk_used_gib: float | None = None
    """Of the disk with the run's folder."""
    disk_total_gib: float | None = None
    shm_used_gib: float | None = None
    """Of /dev/shm, where workers hand over what they saw."""
    shm_total_gib: float | None = None


Sample = TypeVar("Sample", GpuSample, HostSample)


class Series(Generic[Sample]):
    """The newest samples, in order; one thread adds, others read."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._samples: deque[Sample] = deque(maxlen=most)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def latest(self) -> Sample | None:
        """The newest; None before the first."""
        try:
            return self._samples[-1]
        except IndexError:
            return None

    def between(self, began: float, ended: float) -> Sample | None:
        """Means of the samples taken after `began`, up to `ended`; None where there are none."""
        newest_first = reversed(self._samples.copy())  # to which nothing is added meanwhile
        since = takewhile(lambda sample: sample.at > began, newest_first)
        return mean([sample for sample in since if sample.at <= ended][::-1])


def mean(samples: Sequence[Sample]) -> Sample | None:
    """Each figure's mean where it is known; words are those of any sample. None of none."""
    if not samples:
        return None
    _, *figures = zip(*samples, strict=True)
    return type(samples[0])(samples[-1].at, *map(_combined, figures))


def _combined(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not isinstance(known[-1], tuple):
        return statistics.fmean(known)
    if any(isinstance(word, str) for words in known for word in words):
        return tuple(sorted({word for words in known for word in words}))
    alike = (row for row in known if len(row) == len(known[-1]))  # cores can come and go
    return tuple(statistics.fmean(column) for column in zip(*alike, strict=True))


def figures_of(sample: GpuSample | HostSample) -> Iterator[tuple[str, Any]]:
    """Every figure by its name, without the time."""
    return ((name, value) for name, value in sample._asdict().items() if name != "at")
