"""Ctrl-C and SIGTERM: end the iteration, save, leave inside a deadline; asked twice, at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_SHOW_CURSOR = b"\x1b[?25h"
_WHAT_STANDS = "The last checkpoint stands, if there is one."


class StopRequest:
    """While active, the first signal asks the loop to stop, and the second leaves at once.

    In a process of our own (`deadline_s` is given) leaving means ending the process, also when the
    deadline passes. In somebody else's (None), SIGTERM is theirs and a second Ctrl-C is an ordinary
    KeyboardInterrupt. Signals can only be caught in the main thread; elsewhere this does nothing.
    """

    def __init__(self, deadline_s: float | None) -> None:
        self.signal: int | None = None
        self._deadline_s = deadline_s
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            ours = (signal.SIGINT, signal.SIGTERM) if self._deadline_s else (signal.SIGINT,)
            self._before = {number: signal.signal(number, self._heard) for number in ours}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._deadline_s is None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            return
        if self.signal is not None:
            _leave(number, f"Asked twice: leaving at once. {_WHAT_STANDS}")
        self.signal = number
        late = f"Not done within {self._deadline_s:g} s (stop_deadline): leaving. "
        self._timer = threading.Timer(self._deadline_s, _leave, (number, late + _WHAT_STANDS))
        self._timer.daemon = True
        self._timer.start()
        _say(f"Stopping: saving after this iteration ({self._deadline_s:g} s at most).")


def _leave(number: int, message: str) -> None:
    _say(message)
    for stream in (1, 2):
        if os.isatty(stream):
            os.write(stream, _SHOW_CURSOR)  # a live view hides it
    os._exit(128 + number)  # the loop may be anywhere; workers leave when their pipe ends


def _say(message: str) -> None:
    # Straight to the descriptor: a handler may interrupt a print, whose buffer is locked.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{message}\n".encode())
