"""The observations of a replay as they were at a moment, taken part by part while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from stoker.storage.replay import Replay

_PART_BYTES = 64 << 20
_MOST_PARTS = 256


class Snapshot:
    """Parts of the observations, in the order in which the replay would overwrite them.

    A part is taken when the next one is asked for. Between `hold` and `release` the replay waits
    before it overwrites what was not taken yet: seldom, as it writes less in the meantime than it
    holds.
    """

    def __init__(self, replay: Replay, part_bytes: int = _PART_BYTES) -> None:
        counts = replay.count.tolist()  # sync: a checkpoint
        self._replay, self._length = replay, replay.length
        self._first, self._apart = min(counts), max(counts) - min(counts)
        self._used = min(replay.length, max(counts))
        each = sum(rows[0].nbytes for rows in replay.obs.values()) * replay.n_envs
        self._slots = max(1, part_bytes // each, -(-self._used // _MOST_PARTS))
        self._moved = threading.Condition()
        self._taken = self._written = 0
        self._stream: torch.cuda.Stream | None = None
        if replay.obs_device.type == "cuda":
            self._stream = torch.cuda.Stream(replay.obs_device)
            self._stream.wait_stream(torch.cuda.current_stream(replay.obs_device))

    def hold(self) -> None:
        """From now on the replay may be written to, by another thread than takes the parts."""
        self._replay.before_append = self._wait

    def release(self) -> None:
        """Nothing more is wanted: whoever waits goes on."""
        self._replay.before_append = None
        self._move(self._length)

    def _wait(self, rows: int) -> None:
        """Until every environment can have so many rows more."""
        with self._moved:
            self._written += rows
            wanted = min(self._apart + self._written, self._length)
            self._moved.wait_for(lambda: self._taken >= wanted)

    def _move(self, slots: int) -> None:
        with self._moved:
            self._taken += slots
            self._moved.notify_all()

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        taken = 0
        while taken < self._length:
            first = (self._first + taken) % self._length
            stop = min(first + self._slots, self._length, first + self._length - taken)
            if first < self._used:
                yield self._part(first, min(stop, self._used))
            taken += stop - first
            self._move(stop - first)

    def _part(self, first: int, stop: int) -> dict[str, Tensor]:
        n_envs = self._replay.n_envs
        beside = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with beside:
            seen = {
                leaf: rows[first * n_envs : stop * n_envs].cpu()  # sync: a checkpoint
                for leaf, rows in self._replay.obs.items()
            }
        return {"first": torch.tensor(first * n_envs), **{f"obs.{k}": v for k, v in seen.items()}}
