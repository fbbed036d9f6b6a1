"""The device: finding it, setting it up, and knowing what it has left."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import torch

from stoker.errors import ConfigError
from stoker.pools.choose import usable_cores as usable_cores


def find_device(wanted: str) -> torch.device:
    """`auto`, `cuda` or `cpu` as a device; asks for no more than is there."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        built = torch.version.cuda or "no CUDA"
        raise ConfigError(
            f"device is cuda, but torch {torch.__version__} (built for {built}) sees no GPU. Use "
            "--device cpu or auto; `nvidia-smi` shows whether the driver sees one."
        )
    return torch.device("cuda" if wanted != "cpu" and available else "cpu")


def set_up(device: torch.device, precision: str, threads: int) -> None:
    """Matrix precision and thread caps, for the whole process."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        tf32 = precision != "fp32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32


def free_memory(device: torch.device) -> int:
    """Bytes that could still be allocated on `device`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return f"{name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return f"CPU, {usable_cores()} cores, {free_memory(device) / 2**30:.1f} GiB free"


def hardware(device: torch.device) -> dict[str, Any]:
    """What a run's figures are of: the name of its GPU, None without one, and its cores."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"gpu": gpu, "cores": usable_cores()}


def pin(memory: Any) -> bool:
    """Lock a block of host memory, so that a GPU copies from it at full speed, without waiting.

    False if the system does not allow it; everything works all the same.
    """
    block = np.frombuffer(memory, np.uint8)
    return int(torch.cuda.cudart().cudaHostRegister(block.ctypes.data, block.nbytes, 0)) == 0


def unpin(memory: Any) -> None:
    """Undo `pin`, before the memory is given back."""
    torch.cuda.cudart().cudaHostUnregister(np.frombuffer(memory, np.uint8).ctypes.data)
