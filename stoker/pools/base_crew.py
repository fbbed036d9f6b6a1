"""What a pool needs of the workers that its environments live in, wherever these are."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from stoker.config.schema import FaultSettings
from stoker.errors import StokerError, WorkerError
from stoker.pools.faults import FaultLog
from stoker.pools.rows import Infos
from stoker.types import StepBatch

LISTEN_EVERY_S = 0.1
GRACE_S = 5.0
"""For workers to close their environments, before they are killed."""

_NOTHING, _NOTHING_AT_THE_END = Infos({}, None), Infos({}, {})

Stand = tuple[int | None, int]
"""The seed and the episode that an environment is in."""


@dataclass(kw_only=True)
class BaseHand:
    """A worker as the trainer sees it."""

    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    failed: bool = False
    replies: dict[int, list[Any] | StokerError] = field(default_factory=dict)  # by ticket


HandT = TypeVar("HandT", bound=BaseHand)


class BaseCrew(ABC, Generic[HandT]):
    """One worker for each entry of `shares`, which has its environments by group.

    `stand_of` says where an environment stands, for the one that is to take its place. States and
    rows are the pool's: workers change them, or the crew does when it hears of them.
    """

    def __init__(
        self,
        shares: Sequence[Sequence[Sequence[int]]],
        n_envs: int,
        settings: FaultSettings,
        log: FaultLog,
        stand_of: Callable[[int], Stand],
    ) -> None:
        self._settings, self._log, self._stand_of = settings, log, stand_of
        self._hands: list[HandT] = []
        self._dismissed, self._hiring = False, threading.Lock()
        self._tickets = itertools.count()
        self._owned = [[i for share in owned for i in share] for owned in shares]
        self._worker_of = np.zeros(n_envs, np.int64)
        for number, owned in enumerate(self._owned):
            self._worker_of[owned] = number
        self.infos = dict[int, Infos]()

    @abstractmethod
    def start(self) -> None:
        """Start all at once, and wait until each has made its environments."""

    @abstractmethod
    def dismiss(self) -> None:
        """Have all close their environments and leave; kill those who do not, or at a Ctrl-C all.

        Another thread may still be receiving: it gets an error, and replaces nobody.
        """

    @abstractmethod
    def ring_for(self, env_ids: np.ndarray) -> None:
        """Have the workers of these environments do what their states say."""

    def expect(self, first: int, last: int, least: int) -> None:
        """So many of a range of environments are waited for; called before their states are seen.

        For crews whose workers choose when to wake the trainer.
        """

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Sleep until a worker has something to show."""

    @abstractmethod
    def attend(self) -> None:
        """Every now and then: hear reports, replace the dead, end what hangs."""

    def hear(self, env_ids: np.ndarray) -> None:
        """Read what the workers of these environments have reported so far."""

    def forget(self, pick: slice | np.ndarray) -> None:
        """These environments have answered: what they do next began later than what they did."""

    def worked(self) -> float:
        """Seconds that workers have spent on steps, all together."""
        return 0.0

    def tell(self, kind: str, contents: dict[int, Any], has_deadline: bool = True) -> list[Any]:
        """Have workers do something with some of their environments; the results in that order.

        What goes wrong here is raised, not mended.
        """
        try:
            return self._tell(kind, contents, has_deadline)
        except StokerError:
            raise
        except Exception:  # of hands and pipes that another thread has closed, whichever was next
            self._refuse_if_dismissed()
            raise

    def _tell(self, kind: str, contents: dict[int, Any], has_deadline: bool) -> list[Any]:
        self._refuse_if_dismissed()
        shares: dict[int, dict[int, Any]] = {}
        for env_id, content in contents.items():
            shares.setdefault(int(self._worker_of[env_id]), {})[env_id] = content
        for number in shares:
            self._revive(number)
        ticket = next(self._tickets)
        for number, share in shares.items():
            self._post(number, kind, ticket, share)
        while any(ticket not in self._hands[number].replies for number in shares):
            self._listen(0.05, mend=False)
            if has_deadline:
                self._refuse_hangs()
        results: dict[int, Any] = {}
        for number, share in shares.items():
            reply = self._hands[number].replies.pop(ticket)
            if isinstance(reply, StokerError):
                raise reply
            results |= zip(share, reply, strict=True)
        return [results[env_id] for env_id in contents]

    def _revive(self, number: int) -> None:
        """Make sure that a worker lives and is ready."""
        self._listen(0.0)
        while not self._hands[number].ready:
            self._listen(0.05)
            self._check_starts()

    def take_infos(self, batch: StepBatch) -> list[Infos]:
        """The infos of a batch, by row: those that workers wrote, and for the others empty ones."""
        over = (batch.terminated | batch.truncated) & batch.valid
        return [
            self.infos.pop(env_id, _NOTHING_AT_THE_END if ended else _NOTHING)
            for env_id, ended in zip(batch.env_ids.tolist(), over.tolist(), strict=True)
        ]

    def _refuse_if_dismissed(self) -> None:
        if self._dismissed:
            raise WorkerError("The pool is closed, and nobody is left to wait for.")

    @abstractmethod
    def _post(self, number: int, kind: str, ticket: int, contents: dict[int, Any]) -> None:
        """Write to a worker; its reply comes under the ticket."""

    @abstractmethod
    def _listen(self, seconds: float, mend: bool = True) -> None:
        """Take in all reports; replace the workers that ended, or raise that they did."""

    @abstractmethod
    def _check_starts(self, mend: bool = True) -> None:
        """Give up on workers that take too long to make their environments."""

    @abstractmethod
    def _refuse_hangs(self) -> None:
        """Raise that an environment has taken longer than its deadline, if one has."""
