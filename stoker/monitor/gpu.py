"""One GPU, read again and again: what NVML says at a moment, and what GPM counts in between."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from stoker.monitor.nvml import Chip, tell
from stoker.monitor.records import GpuSample
from stoker.monitor.rounds import NEVER, CpuClock, Round, Rounds, next_beat

_GIB = 2**30
_BUSY_EVERY_S = 0.05
# How often to read, in seconds, and the most of a core that it may take; see docs/monitor.md.
_LEVELS = (0.2, 0.0006)
_STATE = (1.0, 0.0003)
_COUNTED = (0.2, 0.0010)  # counters of less than a tenth of a second are refused by some drivers
_PROCESSES = (5.0, 0.0002)

_GPM = threading.Lock()
"""Several threads may ask NVML at once, but not for a look at its counters: that crashes."""

_BESIDES = GpuSample._fields[2:]  # all but the time and busy

_REASONS = {  # bit 0 is an idle GPU, which nothing holds back
    0x002: "clocks set by an application",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "heat, by the driver",
    0x040: "heat, by the hardware",
    0x080: "power brake",
    0x100: "clocks set for a display",
    0x200: "board limit",
    0x400: "reliability",
}


class GpuReader:
    """Samples of one chip. `pid` is the process whose memory counts as its own."""

    def __init__(
        self,
        chip: Chip,
        pid: Callable[[], int | None] = lambda: None,
        cpu_clock: CpuClock = time.thread_time,
    ) -> None:
        self.chip, self._pid = chip, pid
        self._counters = Counters(chip)
        self._answered = self._warned = False
        counted = ("sm_active", "sm_occupancy", "tensor", "dram")
        levels = ("memory_used_gib", "memory_total_gib", "power_w")
        state = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle")
        memory = ("own_memory_gib", "others_memory_gib")
        rounds = [
            Round(levels, self._levels, *_LEVELS),
            Round(counted, self._counters.since_last, *_COUNTED),
            Round(state, self._state, *_STATE),
            Round(memory, self._memory_by_process, *_PROCESSES),
        ]
        self._rounds = Rounds(rounds, cpu_clock)
        self._besides: tuple[Any, ...] = ()
        self.due = NEVER
        """When to sample next."""

    def sample(self, now: float) -> GpuSample:
        """What is known now. Busy is new each time; so this is short, as Python is dear when it
        is seldom run."""
        rates = self.chip.ask("nvmlDeviceGetUtilizationRates")
        self.due = next_beat(self.due, now, _BUSY_EVERY_S)
        if self._rounds.due <= now:
            self._rounds.read(now)
            self._besides = tuple(self._rounds.known[name] for name in _BESIDES)
        if rates is None:
            return self._sample_without_busy(now)
        self._answered = True
        return GpuSample(now, rates.gpu / 100, *self._besides)

    def _sample_without_busy(self, now: float) -> GpuSample:
        """One warning, if more was known before and nothing is now."""
        silent = bool(self.chip.lost) or all(figure is None for figure in self._besides)
        if silent and self._answered and not self._warned:
            self._warned = True
            why = f" ({self.chip.lost})" if self.chip.lost else ""
            tell(
                f"{self.chip.name} no longer answers{why}: what it does is unknown from now on. "
                "`nvidia-smi` shows whether the driver still sees it."
            )
        self._answered = self._answered or not silent
        return GpuSample(now) if silent else GpuSample(now, None, *self._besides)

    def _levels(self) -> dict[str, Any]:
        memory = self.chip.ask("nvmlDeviceGetMemoryInfo")
        milliwatts = self.chip.ask("nvmlDeviceGetPowerUsage")
        return {
            "memory_used_gib": None if memory is None else memory.used / _GIB,
            "memory_total_gib": None if memory is None else memory.total / _GIB,
            "power_w": None if milliwatts is None else milliwatts / 1000,
        }

    def _state(self) -> dict[str, Any]:
        ask, nvml = self.chip.ask, self.chip.nvml
        return {
            "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "throttle": self._throttle(),
        }

    def _throttle(self) -> tuple[str, ...] | None:
        bits = self.chip.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # what older drivers call it
            bits = self.chip.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else throttle_words(bits)

    def _memory_by_process(self) -> dict[str, Any]:
        computing = self.chip.ask("nvmlDeviceGetComputeRunningProcesses")
        if computing is None:
            return {}
        drawing = self.chip.ask("nvmlDeviceGetGraphicsRunningProcesses") or ()
        own, others = split_memory([*drawing, *computing], self._pid())
        return {"own_memory_gib": own, "others_memory_gib": others}

    def close(self) -> None:
        self._counters.close()


def throttle_words(bits: int) -> tuple[str, ...]:
    """NVML's reasons for lower clocks, in words, without idleness."""
    known = tuple(word for bit, word in _REASONS.items() if bits & bit)
    unknown = bits & ~(1 | sum(_REASONS))
    return (*known, f"reason {unknown:#x}") if unknown else known


def split_memory(processes: Iterable[Any], pid: int | None) -> tuple[float | None, float | None]:
    """GiB of the process `pid` and of all others; None is unknown.

    In a container processes have other numbers than the driver's, or are not shown: where `pid` is
    not among them, neither figure is known.
    """
    used = {process.pid: process.usedGpuMemory for process in processes}
    if not used or (pid is not None and pid not in used):
        return None, None
    own = used.pop(pid, None) if pid is not None else None
    others = None if None in used.values() else sum(used.values()) / _GIB
    return (None if own is None else own / _GIB), others


class Counters:
    """GPM's counters, each from one look to the next; some chips count, from Hopper on."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._supported: bool | None = None
        self._last: Any = None
        self._spare: Any = None

    def since_last(self) -> dict[str, Any]:
        """The share of each since the last call; nothing the first time."""
        with _GPM:
            return self._since_last()

    def _since_last(self) -> dict[str, Any]:
        if self._supported is None:
            self._open()
        if not self._supported:
            return {}
        before, now = self._last, self._look(self._spare)
        if now is None:
            return {}
        self._last, self._spare = now, before
        if before is not None:
            return self._counted(before, now)
        self._spare = self._chip.call("nvmlGpmSampleAlloc")
        return {}

    def _open(self) -> None:
        chip = self._chip
        whole = chip.handle if chip.parent is None else chip.parent
        support = chip.call("nvmlGpmQueryDeviceSupport", whole)
        self._supported = bool(support is not None and support.isSupportedDevice)
        if self._supported:
            self._spare = chip.call("nvmlGpmSampleAlloc")

    def _look(self, into: Any) -> Any:
        chip = self._chip
        if into is None:
            return None
        if chip.parent is None:
            return chip.ask("nvmlGpmSampleGet", into)
        if chip.instance is None:
            return None
        return chip.call("nvmlGpmMigSampleGet", chip.parent, chip.instance, into)

    def _counted(self, before: Any, now: Any) -> dict[str, Any]:
        nvml = self._chip.nvml
        numbers = {
            "sm_active": nvml.NVML_GPM_METRIC_SM_UTIL,
            "sm_occupancy": nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
            "tensor": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "dram": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        }
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(numbers)
        asked.sample1, asked.sample2 = before, now
        for place, number in enumerate(numbers.values()):
            asked.metrics[place].metricId = number
        if self._chip.call("nvmlGpmMetricsGet", asked) is None:
            return {}
        answers = zip(numbers, asked.metrics, strict=False)
        return {
            name: one.value / 100
            for name, one in answers
            if one.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(one.value)
        }

    def close(self) -> None:
        """Give the samples' memory back."""
        with _GPM:
            for held in (self._last, self._spare):
                if held is not None:
                    self._chip.call("nvmlGpmSampleFree", held)
        self._last = self._spare = None
        self._supported = False
