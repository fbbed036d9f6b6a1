"""Waking another process: a semaphore in shared memory that costs no system call while heard.

A ring is an atomic addition unless somebody sleeps, and so is a wait that finds a ring. On Linux
the semaphore lies in the pool's own anonymous block, so that it has no name which could be left
behind; elsewhere it is multiprocessing's, which has one until the pool is closed.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

SIZE = 64
"""Bytes of a bell: a cache line, though a semaphore takes half of it."""
_SPINS = 10
"""Looks before sleeping, 0.15 us each: a ring that is about to come is caught without a system
call, and the GIL is not kept from other threads for long."""


class Bell:
    """Rung by one process, waited for by another. `clear` it before use, while nobody waits."""

    def __init__(self, memory: Any, place: int) -> None:
        self._memory = memory  # kept, as the address points into it
        self._address = ctypes.c_void_p(ctypes.addressof(memory) + place)
        held, released = ctypes.PyDLL(None), ctypes.CDLL(None)  # the GIL, during a call
        self._post, self._try, self._init = held.sem_post, held.sem_trywait, held.sem_init
        self._sleep = released.sem_clockwait

    def clear(self) -> None:
        self._init(self._address, 1, 0)

    def ring(self) -> None:
        self._post(self._address)

    def wait(self, seconds: float) -> bool:
        """Whether it was rung, now or within `seconds`; all rings so far are forgotten."""
        look, address = self._try, self._address
        for _ in range(_SPINS):
            if look(address) == 0:
                break
        else:
            if seconds <= 0 or not self._sleep_for(seconds):
                return False
        while look(address) == 0:
            pass
        return True

    def _sleep_for(self, seconds: float) -> bool:
        until = _Timespec(*divmod(time.monotonic_ns() + int(seconds * 1e9), 1_000_000_000))
        return self._sleep(self._address, time.CLOCK_MONOTONIC, ctypes.byref(until)) == 0


class NamedBell:
    """The same where semaphores cannot lie in shared memory, or wait for a monotonic clock."""

    def __init__(self, context: Any) -> None:
        self._semaphore = context.Semaphore(0)

    def clear(self) -> None:
        while self._semaphore.acquire(False):
            pass

    def ring(self) -> None:
        self._semaphore.release()

    def wait(self, seconds: float) -> bool:
        heard = self._semaphore.acquire(seconds > 0, seconds)
        if heard:
            self.clear()
        return heard


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def semaphores_can_be_shared() -> bool:
    """Whether this system's C library offers what `Bell` needs."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "sem_clockwait")
