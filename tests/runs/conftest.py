"""Disks of a known size, for tests of a full one; and what TensorBoard makes of a folder."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class SmallDisk(NamedTuple):
    """A real file system of one megabyte."""

    path: Path

    def fill(self) -> Path:
        """Take all the room that is left; the file that took it."""
        ballast = self.path / "ballast"
        with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 4096):
                pass
        return ballast


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    place = tmp_path / "small_disk"
    place.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
        )
    except OSError as error:
        pytest.skip(f"cannot mount a small tmpfs here: {error}")
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {mounted.stderr.decode().strip()}")
    yield SmallDisk(place)
    subprocess.run(["umount", "-l", str(place)], check=True)


Scalars = dict[str, list[tuple[int, float]]]
"""(step, value) by name."""


@pytest.fixture(scope="session")
def shown() -> Callable[[Path], Scalars]:
    """What TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def look(folder: Path) -> Scalars:
        found = EventAccumulator(str(folder)).Reload()
        names = found.Tags()["scalars"]
        return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in names}

    return look
