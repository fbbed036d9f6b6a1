"""What the trainer and its workers share: rows, a state byte an environment, bells, mail."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.pools import bell
from stoker.pools.bell import Bell, NamedBell, semaphores_can_be_shared
from stoker.pools.rows import Rows, padded
from stoker.types import EnvSpec

# An environment's state. The trainer writes IDLE, ASKED and RENEW; its worker the others, and IDLE
# after a reset.
IDLE = 0
ASKED = 1  # to step; the action is in its row
RENEW = 2  # to cut its episode off and begin another
TAKEN = 3  # queued by its worker
STEPPING = 4
RESETTING = 5
DONE = 6  # its row is a step
CUT = 7  # its row is the end of an episode that a fault cut off

AnyBell = Bell | NamedBell


class Board:
    """One block of memory, laid out alike in every process.

    Each worker has a bell to be called by, and one to be told that it stalls; all ring one to
    answer.
    """

    def __init__(
        self,
        spec: EnvSpec,
        n_envs: int,
        n_workers: int,
        memory: Any,
        bells: list[AnyBell] | None = None,
    ) -> None:
        self._made_with = (spec, n_envs, n_workers, memory, bells)
        self.memory = memory
        self.rows = Rows(spec, n_envs, memory)
        place = Rows.size(spec, n_envs)
        self.states = np.frombuffer(memory, np.uint8, n_envs, place)
        place += padded(n_envs)
        self.noted = np.frombuffer(memory, np.uint8, n_envs, place)
        """Whether an environment's worker has written its infos to the pipe: not if empty."""
        place += padded(n_envs)
        self.mail = np.frombuffer(memory, np.uint8, n_workers, place)
        """Whether the trainer has written to a worker's pipe."""
        place += padded(n_workers)
        self.told = np.frombuffer(memory, np.uint8, 1, place)
        """Whether somebody has said where what environments print goes."""
        place += padded(1)
        self.wish = np.frombuffer(memory, np.int64, 3, place)
        """Whom the trainer waits for: a first environment, the one after the last, how many."""
        place += padded(self.wish.nbytes)
        self.beats = np.frombuffer(memory, np.int64, n_workers, place)
        """How often each worker has turned to another environment."""
        place += padded(self.beats.nbytes)
        self.worked = np.frombuffer(memory, np.float64, n_workers, place)
        """Seconds that each worker has spent on steps."""
        place += padded(self.worked.nbytes)
        if bells is None:
            bells = [Bell(memory, place + i * bell.SIZE) for i in range(2 * n_workers + 1)]
        self.calls, self.alarms, self.answer = bells[:n_workers], bells[n_workers:-1], bells[-1]

    @classmethod
    def make(cls, context: Any, spec: EnvSpec, n_envs: int, n_workers: int) -> Board:
        """A board in new shared memory, to be handed to workers as they start."""
        fields = (n_envs, n_envs, n_workers, 1, 24, 8 * n_workers, 8 * n_workers)
        size = Rows.size(spec, n_envs) + sum(map(padded, fields))
        count = 2 * n_workers + 1
        named: list[AnyBell] | None = None
        if not semaphores_can_be_shared():
            named = [NamedBell(context) for _ in range(count)]
        memory = context.RawArray("B", size + count * bell.SIZE)
        return cls(spec, n_envs, n_workers, memory, named)

    def __reduce__(self) -> Any:
        return Board, self._made_with
