"""The GPU that jobs share: whether there is one, what it has free, and what it did."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from stoker.monitor.records import GpuSample, figures_of
from stoker.monitor.sampler import Gpu, Sampler

_OPENS_WITHIN_S = 10.0
_SETTLES_S = 1.0
_TOLD = ("busy", "sm_active", "sm_occupancy", "tensor", "dram", "memory_used_gib", "power_w")


class Chip:
    """What NVML says of the GPU that jobs will train on. Where it says nothing, all is unknown."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._sampler = Sampler()
        self.gpu: Gpu | None = None
        self.why_none: str | None = None

    def __enter__(self) -> Chip:
        self._sampler.start()
        self._sampler.wait_until_open(_OPENS_WITHIN_S)
        self.gpu = used_by_cuda(self._sampler.gpus, self._environment.get("CUDA_VISIBLE_DEVICES"))
        self.why_none = None if self.gpu else self._sampler.trouble or "CUDA_VISIBLE_DEVICES is set"
        if self.gpu is not None:
            time.sleep(_SETTLES_S)  # for the first samples of what was there before the jobs
        return self

    def __exit__(self, *error: object) -> None:
        self._sampler.close()

    def means(self, began: float | None, ended: float | None) -> GpuSample | None:
        """Between two moments of Unix time; None is unknown."""
        if self.gpu is None or began is None or ended is None:
            return None
        back = time.time() - time.monotonic()
        return self.gpu.series.between(began - back, ended - back)

    @property
    def now(self) -> GpuSample | None:
        return None if self.gpu is None else self.gpu.series.latest


def used_by_cuda(gpus: Sequence[Gpu], visible: str | None) -> Gpu | None:
    """The GPU that CUDA calls 0, by what CUDA_VISIBLE_DEVICES says."""
    first = None if visible is None else visible.split(",")[0].strip()
    if first is None:
        return gpus[0] if gpus else None
    for gpu in gpus:
        if first == str(gpu.number) or (gpu.uuid is not None and first and gpu.uuid == first):
            return gpu
    return None


def told(sample: GpuSample | None) -> dict[str, float]:
    """What is known of a GPU's work, by name."""
    figures = () if sample is None else figures_of(sample)
    return {name: value for name, value in figures if name in _TOLD and value is not None}
