"""Sets a GPU up while Python still imports: what would come after it, and take as long again."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from contextlib import suppress
from typing import Any

_DRIVER = "libcuda.so.1"
_LOOKS_APART_S = 0.005
_PATIENCE_S = 60.0


def wake_gpu(arguments: list[str]) -> threading.Thread | None:
    """Have the driver make the context that torch will use, in a thread, unless nobody will; then,
    as soon as torch is there, have torch load what it begins with.

    Most of it happens without Python's lock. Where there is no driver, nothing does.
    """
    if "--device cpu" in " ".join(arguments).replace("=", " ") or {"-h", "--help"} & {*arguments}:
        return None
    waking = threading.Thread(target=_wake, name="stoker-wake", daemon=True)
    waking.start()
    return waking


def _wake() -> None:
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        torch = _once_imported("torch")
        with suppress(Exception):  # whatever is wrong will be said where the GPU is used
            if torch is not None and torch.cuda.is_available():
                square = torch.ones(8, 8, device="cuda", requires_grad=True)
                (square @ square).tanh().sum().backward()  # products, and kernels of all kinds


def _once_imported(name: str) -> Any:
    """The module, when somebody has imported it; None if that takes too long."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            return module
        time.sleep(_LOOKS_APART_S)
    return None
