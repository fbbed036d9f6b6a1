"""Hidden temporary names that say whose they are, so that a dead process's leftovers can go."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
from pathlib import Path

from stoker.runs.process import is_alive

_SESSION = secrets.token_hex(4)
_COUNTER = itertools.count()
_PATTERN = re.compile(r"\.tmp-.*-(?P<pid>\d+)-(?P<session>[0-9a-f]{8})\d+", re.DOTALL)


def temporary_sibling(path: Path) -> Path:
    """An unused hidden name in the folder of `path`, marked as this process's."""
    return path.with_name(f".tmp-{path.name}-{os.getpid()}-{_SESSION}{next(_COUNTER)}")


def sync_folder(folder: Path) -> None:
    """Make the renames and new names in `folder` survive a loss of power."""
    if os.name == "nt":  # Windows cannot open a folder, and needs no sync for it
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove `path` so that a crash half-way leaves only a hidden leftover, never half a folder."""
    hidden = temporary_sibling(path)
    path.rename(hidden)
    shutil.rmtree(hidden)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that are gone left in `folder` under temporary names."""
    for path in folder.glob(".tmp-*"):
        match = _PATTERN.fullmatch(path.name)
        if match is None or _in_use(int(match["pid"]), match["session"]):
            continue
        if path.is_dir() and not path.is_symlink():
            # Two processes may tidy at once: what is already gone is no error.
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _in_use(pid: int, session: str) -> bool:
    # In a container a restarted trainer often has its predecessor's pid: the session tells them
    # apart. A forked child has the session of its parent, and the pid tells those apart.
    return session == _SESSION if pid == os.getpid() else is_alive(pid)
