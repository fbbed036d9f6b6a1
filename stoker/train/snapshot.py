"""A replay in a checkpoint: its observations as they were at a moment, taken part by part while it
goes on, and all else."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
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
        # What follows the newest rows of a ring that is not full is nothing to take.
        free = self._length - self._used if not self._apart and self._first == self._used else 0
        self._taken, self._written = free, 0
        self._stream: torch.cuda.Stream | None = None
        if replay.obs_device.type == "cuda":
            self._stream = torch.cuda.Stream(replay.obs_device)
            self._stream.wait_stream(torch.cuda.current_stream(replay.obs_device))

    def hold(self) -> None:
        """From now on the replay may be written to, by another thread than takes the parts."""
        self._replay.before_append = self._wait

    def release(self) -> None:
        """Nothing more is wanted: whoever waits goes on."""
        if self._replay.before_append == self._wait:
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
        taken = self._taken
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


def state_of(replay: Replay) -> dict[str, Tensor]:
    """All that was written but what was seen, by name; views, where it is on the CPU."""
    used = replay.n_envs * min(replay.length, int(replay.count.max()))  # sync: a checkpoint
    held = {name: value[:used] for name, value in _held(replay).items()}
    shape = torch.tensor([replay.length, replay.n_envs])
    return {**held, "count": replay.count, "highest": replay.priorities.highest, "shape": shape}


def fits(replay: Replay, state: Mapping[str, Tensor]) -> bool:
    """Whether what `state_of` gave is of as many environments, and as long rings."""
    return state["shape"].tolist() == [replay.length, replay.n_envs]  # sync: a checkpoint


def restore(
    replay: Replay, state: Mapping[str, Tensor], seen: Iterable[Mapping[str, Tensor]]
) -> None:
    """Go on from `state_of` and what was seen, in parts that say where they begin."""
    if not fits(replay, state):
        raise ValueError("the replay has another shape")
    for name, value in _held(replay).items():
        value.zero_()
        value[: len(state[name])] = state[name]
    for rows in replay.obs.values():
        rows.zero_()
    for part in seen:
        first = int(part["first"])
        for leaf, rows in replay.obs.items():
            saved = part[f"obs.{leaf}"]
            rows[first : first + len(saved)] = saved
    replay.count.copy_(state["count"])
    replay.priorities.highest.copy_(state["highest"])
    replay.priorities.tree.rebuild()


def _held(replay: Replay) -> dict[str, Tensor]:
    rest = {"action": replay.action, "reward": replay.reward, "kind": replay.kind}
    masks = {} if replay.mask is None else {"mask": replay.mask}
    weights = {"priority": replay.priorities.tree.levels[0]}
    return {**rest, **masks, **weights, "outcome": replay.outcome}
