"""What a GPU does while others use it: NVML's busy share and power, and GPM's counters.

Busy is the share of time with any kernel running. SM active, which only some chips count, is the
share of the chip's processors that had work: a kernel of one block makes a GPU 100 % busy.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any, NamedTuple

import torch

_EVERY_S = 0.02
_COUNTED_EVERY_S = 0.2  # counters of less than a tenth of a second are refused by some drivers
_SETTLES_S = 0.3  # NVML's busy share is of the last sixth of a second, or longer


class Seen(NamedTuple):
    """A measurement: of the time from `since` to `until`, by `time.monotonic`."""

    what: str
    value: float
    since: float
    until: float


class GpuWatch:
    """Samples in a thread of its own, from `with` to its end. Without NVML it knows nothing."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuWatch:
        chip = _open()
        if chip is not None:
            self._thread = threading.Thread(target=self._watch, args=(chip,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def between(self, began: float, ended: float) -> dict[str, float] | None:
        """Means of what was measured in that time; None where nothing was: unknown."""
        wanted = [s for s in self._seen if s.since >= began + _SETTLES_S and s.until <= ended]
        names = dict.fromkeys(seen.what for seen in wanted)
        means = {n: statistics.mean(s.value for s in wanted if s.what == n) for n in names}
        return {name: round(value, 1) for name, value in means.items()} or None

    def _watch(self, chip: Any) -> None:
        counters = _counters(chip)
        counted_at = time.monotonic()
        while not self._over.wait(_EVERY_S):
            now = time.monotonic()
            for what, value in _look(chip).items():
                self._seen.append(Seen(what, value, now, now))
            if counters is not None and now - counted_at >= _COUNTED_EVERY_S:
                counted = counters.since_last()
                self._seen += [Seen(what, value, counted_at, now) for what, value in counted]
                counted_at = now


def _open() -> Any:
    """The chip that torch uses, as NVML knows it; None without one."""
    if not torch.cuda.is_available():
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # not installed, no driver, a chip in parts
        return None


def _look(chip: Any) -> dict[str, float]:
    import pynvml

    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(chip).gpu
        return {"busy_%": busy, "power_w": pynvml.nvmlDeviceGetPowerUsage(chip) / 1000}
    except pynvml.NVMLError:
        return {}


def _counters(chip: Any) -> _Counters | None:
    """None where the chip has none, or does not let us read them."""
    import pynvml

    try:
        supported = pynvml.nvmlGpmQueryDeviceSupport(chip).isSupportedDevice
        return _Counters(chip) if supported else None
    except pynvml.NVMLError:
        return None


class _Counters:
    """GPM's counters, each from one look to the next."""

    def __init__(self, chip: Any) -> None:
        import pynvml as nvml

        self._nvml, self._chip = nvml, chip
        self._names = {
            nvml.NVML_GPM_METRIC_SM_UTIL: "sm_active_%",
            nvml.NVML_GPM_METRIC_SM_OCCUPANCY: "sm_occupancy_%",
            nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor_%",
            nvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram_%",
        }
        self._last, self._next = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(chip, self._last)

    def since_last(self) -> list[tuple[str, float]]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(self._names)
        for place, number in enumerate(self._names):
            asked.metrics[place].metricId = number
        try:
            nvml.nvmlGpmSampleGet(self._chip, self._next)
            asked.sample1, asked.sample2 = self._last, self._next
            nvml.nvmlGpmMetricsGet(asked)
        except nvml.NVMLError:
            return []
        self._last, self._next = self._next, self._last
        found = zip(self._names.values(), asked.metrics, strict=False)
        return [(name, one.value) for name, one in found if one.nvmlReturn == nvml.NVML_SUCCESS]
