"""The lock of a run: held by the process that trains it, gone with that process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
import weakref
from pathlib import Path

from stoker.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".lock"

# A reader that looks whether the lock is held holds it for microseconds; it is waited for.
_PATIENCE_S = 0.5
_HOLDER = re.compile(r"(\d{1,20}) ([\w.:-]{1,255})\n")
# A link put in the lock's place would have us write elsewhere, a pipe would keep us waiting.
_NO_TRICKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class RunLock:
    """Held until `close`, or until the process is gone. Make it with `RunFolder.lock`.

    Programs that this process starts do not inherit it, nor do its forked children.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        _HELD.add(self)

    def close(self) -> None:
        """Let go; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def take_lock(folder: Path, name: str) -> RunLock:
    """Take the lock of the run `name` at `folder`; RunError where another holds it.

    Where there are no such locks (on Windows, on some network disks) or no room for the file, the
    lock that is returned holds nothing.
    """
    if fcntl is None:
        return RunLock(None)
    try:
        descriptor = _open(folder, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return RunLock(None)
        raise RunError(
            f"Cannot lock the run {name}: {folder / LOCK_NAME}: {error.strerror}. See that the "
            "folder is there and may be written to."
        ) from error
    held: bool | None = None
    try:
        held = _try_patiently(descriptor, fcntl.LOCK_EX)
        if held is False:
            raise RunError(
                f"The run {name} is still running{_holder(descriptor)}; stop it before resuming it."
            )
    finally:
        if not held:
            os.close(descriptor)
    if held is None:
        return RunLock(None)
    with contextlib.suppress(OSError):  # who holds it is told for the message alone
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    return RunLock(descriptor)


def is_locked(folder: Path) -> bool | None:
    """Whether a process holds the lock of the run at `folder`; None where that cannot be known:
    there is no lock file, or no such lock here. Makes no file."""
    if fcntl is None:
        return None
    try:
        descriptor = _open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        free = _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)
    return None if free is None else not free


def _open(folder: Path, flags: int) -> int:
    path = folder / LOCK_NAME
    descriptor = os.open(path, flags | _NO_TRICKS, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def _try(descriptor: int, kind: int) -> bool | None:
    """Whether the lock could be taken; None where the file system has none."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _try_patiently(descriptor: int, kind: int) -> bool | None:
    deadline = time.monotonic() + _PATIENCE_S
    while (taken := _try(descriptor, kind)) is False and time.monotonic() < deadline:
        time.sleep(0.01)
    return taken


def _holder(descriptor: int) -> str:
    try:
        text = os.pread(descriptor, 300, 0).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    match = _HOLDER.fullmatch(text)
    return f" (process {match[1]} on {match[2]})" if match else ""


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    # A forked child shares the lock, and would keep it when the trainer is gone.
    for lock in list(_HELD):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
