"""Facts of this machine for `monitor.findings`: limits, free memory, the GPU before we use it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from stoker.monitor.gpu import GpuReader
from stoker.monitor.host import disk_gib
from stoker.monitor.nvml import Chip, open_chips

_SHM = Path("/dev/shm")
_LOOK_S = 0.25  # that cores are watched before anything begins
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def machine_facts() -> dict[str, Any]:
    """Fields of `Facts` that are the machine's alone, as they are before a job begins."""
    used, total = disk_gib(_SHM)
    return {
        "cores_busy_before": psutil.cpu_percent(interval=_LOOK_S) / 100,
        "handles": _handles(),
        "shm_free_gib": None if used is None or total is None else total - used,
        "worker_threads": max([1, *(_number(os.environ.get(name)) for name in _THREADS)]),
        **_gpu_facts(),
    }


def _handles() -> int | None:
    try:
        import resource
    except ImportError:  # there are no such limits
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _number(written: str | None) -> int:
    """`4` of `4,2`, as OpenMP writes nested levels; 1 of anything else."""
    first = (written or "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 1


def _gpu_facts() -> dict[str, Any]:
    found = open_chips()
    try:
        return _facts_of(found.chips[0]) if found.chips else {}
    finally:
        found.close()


def _facts_of(chip: Chip) -> dict[str, Any]:
    reader = GpuReader(chip)
    try:
        sample = reader.sample(time.monotonic())
    finally:
        reader.close()
    newest = chip.call("nvmlSystemGetCudaDriverVersion_v2")
    driver = chip.call("nvmlSystemGetDriverVersion")
    return {
        "gpu": chip.name,
        "driver": None if driver is None else str(driver),
        "driver_cuda": None if newest is None else (newest // 1000, newest % 1000 // 10),
        "busy_before": sample.busy,
        "memory_before_gib": sample.memory_used_gib,
    }
