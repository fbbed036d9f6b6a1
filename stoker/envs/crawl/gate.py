"""What stands before a host: its circuit breaker, its pace, and the number of requests at a time.

A host is left alone after a row of failures, since waiting for it again and again costs every
environment its time. After the cool-down a single request, the trial, finds out whether it is
back; the others go on being refused until it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stoker.envs.crawl.failure import ANSWERS, FAULTS_OF_THE_HOST, FetchError
from stoker.envs.crawl.limits import Limits


class Breaker:
    """Counts failures in a row. Any answer ends the row."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._failures = 0
        self._open_until: float | None = None
        self._on_trial = False

    def refuses(self, now: float) -> bool:
        if self._open_until is None:
            return False
        return self._on_trial or now < self._open_until

    def admit(self) -> bool:
        """Let a request through that is not refused; True if it is the trial."""
        if self._open_until is None:
            return False
        self._on_trial = True
        return True

    def note_answer(self) -> None:
        self._failures, self._open_until = 0, None

    def note_failure(self, now: float, trial: bool) -> None:
        """Requests that were under way when it opened do not keep it open for longer."""
        self._failures += 1
        opens = self._open_until is None and self._failures >= self._limits.breaker_failures
        if trial or opens:
            self._open_until = now + self._limits.breaker_cooldown_s

    def end_trial(self) -> None:
        """The trial is over, with an answer, a failure or neither (it was cancelled)."""
        self._on_trial = False


class HostGate:
    """The gate of one host and port, for all environments on an event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._breaker = Breaker(limits)
        self._places = asyncio.Semaphore(limits.max_connections)
        self._next_at = 0.0

    @property
    def is_shut(self) -> bool:
        """Whether the breaker would refuse a request now."""
        return self._breaker.refuses(_now())

    @asynccontextmanager
    async def turn(self, url: str, deadline: float) -> AsyncIterator[None]:
        """Holds a request back until it may go. How the block ends is noted in the breaker."""
        self._refuse_if_shut(url)
        await self._take_place(url, deadline)
        try:
            await self._keep_pace(url, deadline)
            self._refuse_if_shut(url)
            trial = self._breaker.admit()
            try:
                yield
            except FetchError as error:
                if error.kind in FAULTS_OF_THE_HOST:
                    self._breaker.note_failure(_now(), trial)
                elif error.kind in ANSWERS:
                    self._breaker.note_answer()
                raise
            else:
                self._breaker.note_answer()
            finally:
                if trial:
                    self._breaker.end_trial()
        finally:
            self._places.release()

    async def _take_place(self, url: str, deadline: float) -> None:
        if not self._places.locked():  # most often; a time-out costs more than the place
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            raise self._no_turn(url) from None

    async def _keep_pace(self, url: str, deadline: float) -> None:
        """Wait for a moment of our own; moments are given in the order of asking."""
        if self._limits.requests_per_s is None:
            return
        mine = max(_now(), self._next_at)
        if mine > deadline:
            raise self._no_turn(url)
        self._next_at = mine + 1 / self._limits.requests_per_s
        await asyncio.sleep(mine - _now())

    def _refuse_if_shut(self, url: str) -> None:
        if self.is_shut:
            limits = self._limits
            raise FetchError(
                "circuit-open",
                url,
                f"its host failed {limits.breaker_failures} times in a row or more, and is left "
                f"alone for {limits.breaker_cooldown_s:g} s at a time. Look whether it is up.",
            )

    def _no_turn(self, url: str) -> FetchError:
        limits = self._limits
        return FetchError(
            "timeout",
            url,
            f"its turn did not come within {limits.total_s:g} s. Allow more requests to a host "
            f"(max_connections={limits.max_connections}, "
            f"requests_per_s={limits.requests_per_s}) or more time (total_s).",
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
