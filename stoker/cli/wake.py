"""Sets a GPU up while Python still imports: half a second that would come after it."""

from __future__ import annotations

import ctypes
import threading

_DRIVER = "libcuda.so.1"


def wake_gpu(arguments: list[str]) -> threading.Thread | None:
    """Have the driver make the context that torch will use, in a thread, unless nobody will.

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
