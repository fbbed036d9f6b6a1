"""A `pynvml` without a GPU: the functions that Stoker calls, with recognisable numbers.

Each answer can be made to fail, from the beginning or at a moment, with any of NVML's errors.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT = 3, 4, 6, 10
UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 1, 9, 12, 13
GPU_IS_LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 15, 16, 18, 999
INVALID_ARGUMENT, NO_DATA, NOT_READY = 2, 21, 27
MIB, GIB = 2**20, 2**30


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML said {value}")
        self.value = value


class GpmRequest:
    """As c_nvmlGpmMetricsGet_t: the caller fills in ids, the library values."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = None
        self.metrics = [
            types.SimpleNamespace(metricId=0, nvmlReturn=1, value=0.0) for _ in range(9)
        ]


class FakeNvml(types.ModuleType):
    """One GPU unless told otherwise: 60 % busy, 20 of 80 GiB, 300 W, 1980 and 2600 MHz, 45 C."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY = 2, 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 5, 10
    NVML_GPM_METRICS_GET_VERSION = 1
    c_nvmlGpmMetricsGet_t = GpmRequest  # noqa: N815

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.gpus = ["whole-0"]
        self.parts: dict[str, list[str | None]] = {}
        """By GPU, what is in each place for a part."""
        self.fails: dict[str, int] = {}
        """By function, the error it raises now."""
        self.busy, self.reasons, self.counts_gpm = 60, 0, True
        self.counter = 0.0
        self.processes: list[tuple[int, int | None]] = []
        self.asked: list[str] = []
        self.open = 0
        self.held: set[object] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("nvml"):
            return found
        return self._guarded(name, found)

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            code = self.fails.get(name, self.fails.get("*"))
            if code is not None:
                raise NVMLError(code)
            return function(*arguments)

        return call

    def nvmlInit(self) -> None:  # noqa: N802, NVML's own names, here and below
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        kind, _, handle = uuid.partition("-")
        known = self.gpus if kind == "GPU" else [one for row in self.parts.values() for one in row]
        if handle not in known:
            raise NVMLError(NOT_FOUND)
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return f"Fake {handle}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"GPU-{handle}" if handle in self.gpus else f"MIG-{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        self._whole(handle)
        return types.SimpleNamespace(gpu=self.busy, memory=7)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        size = 1 if handle in self.gpus else 8
        return types.SimpleNamespace(used=20 * GIB // size, total=80 * GIB // size, free=0)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        self._whole(handle)
        return 300_000

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 2600}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        self._whole(handle)
        return 45 + sensor

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons | 0x8

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [types.SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in self.processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return []

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(handle in self.parts)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return len(self.parts[handle])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, place: int) -> str:  # noqa: N802
        part = self.parts[handle][place]
        if part is None:
            raise NVMLError(NOT_FOUND)
        return part

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: str) -> str:  # noqa: N802
        return next(gpu for gpu, row in self.parts.items() if part in row)

    def nvmlDeviceGetGpuInstanceId(self, part: str) -> int:  # noqa: N802
        return 3

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:  # noqa: N802
        self._whole(handle)
        return types.SimpleNamespace(isSupportedDevice=int(self.counts_gpm))

    def nvmlGpmSampleAlloc(self) -> dict[str, float]:  # noqa: N802
        sample = _Sample()
        self.held.add(sample)
        return sample

    def nvmlGpmSampleFree(self, sample: object) -> None:  # noqa: N802
        self.held.remove(sample)

    def nvmlGpmSampleGet(self, handle: str, sample: Any) -> Any:  # noqa: N802
        self._whole(handle)
        sample["counter"] = self.counter
        return sample

    def nvmlGpmMigSampleGet(self, handle: str, instance: int, sample: Any) -> Any:  # noqa: N802
        assert instance == 3
        return self.nvmlGpmSampleGet(handle, sample)

    def nvmlGpmMetricsGet(self, asked: GpmRequest) -> GpmRequest:  # noqa: N802
        """The metric with number n is n times what the counter moved by."""
        moved = asked.sample2["counter"] - asked.sample1["counter"]  # type: ignore[index]
        for one in asked.metrics[: asked.numMetrics]:
            one.nvmlReturn, one.value = 0, one.metricId * moved
        return asked

    def _whole(self, handle: str) -> None:
        if handle not in self.gpus:
            raise NVMLError(NOT_SUPPORTED)


class _Sample(dict[str, float]):
    __hash__ = object.__hash__  # type: ignore[assignment]
