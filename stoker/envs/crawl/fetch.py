"""Fetches pages within limits: few hosts, little time, small bodies, bounded retries.

Only GET is sent, so that asking twice is harmless. Asked again is what may pass: a connection
that fails or breaks, a time-out while connecting, and the statuses 429, 502, 503 and 504. Not 500,
which is a fault in the program that answers and would be the same the next time, and not a server
that accepts and then is silent, since it has had its time. A page with any other status, 404 for
one, is an answer like others and is returned.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from stoker.envs.crawl.body import decode
from stoker.envs.crawl.counts import Counts
from stoker.envs.crawl.failure import FetchError, shown
from stoker.envs.crawl.limits import Limits
from stoker.envs.crawl.lines import Lines
from stoker.envs.crawl.urls import Target, follow, read_url

if TYPE_CHECKING:
    from stoker.envs.crawl.wire import Answer, Resolve

_STEEPEST = 30
"""Past this many doublings a pause is at its cap, and floats stay finite."""


class Page(NamedTuple):
    """A page as it came. `text` is decoded by the charset declared, or as UTF-8."""

    url: str
    """Where it was found in the end, after redirects."""
    status: int
    content_type: str
    text: str
    took_s: float
    attempts: int
    """Requests it took, redirects and retries included."""


@dataclass
class _Trip:
    """The way to one page."""

    started: float
    deadline: float
    attempts: int = 0
    retries: int = 0


class Fetcher:
    """Fetches pages on the event loop it was made on, any number at a time.

    `rng` draws the pauses before retries. `resolve` looks up names, `getaddrinfo` by default.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        rng: random.Random | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._settle(Lines(limits or Limits(), resolve), rng)

    @classmethod
    def shared(cls, limits: Limits | None = None, *, rng: random.Random | None = None) -> Self:
        """A fetcher with its own counts and pauses that shares all else with its like.

        Connections, breakers and the pace are those of every shared fetcher with equal limits on
        the running event loop; they end with the last of these fetchers that is closed.
        """
        fetcher = cls.__new__(cls)
        fetcher._settle(Lines.shared(limits or Limits()), rng)
        return fetcher

    def _settle(self, lines: Lines, rng: random.Random | None) -> None:
        self.counts = Counts()
        self._rng = rng or random.Random()
        self._lines = lines
        self._lines.take()
        self._closed = False

    @property
    def limits(self) -> Limits:
        return self._lines.limits

    async def get(self, url: str) -> Page:
        """The page at `url`, or a `FetchError`, within `limits.total_s`."""
        if self._closed:
            raise RuntimeError("This fetcher is closed. Make another, or close it later.")
        self.counts.gets += 1
        try:
            page = await self._fetch(url)
        except FetchError as error:
            self.counts.failures[error.kind] += 1
            raise
        self.counts.pages += 1
        return page

    async def close(self) -> None:
        """Let go of the connections. A second call does nothing."""
        if not self._closed:
            self._closed = True
            await self._lines.let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _fetch(self, url: str) -> Page:
        """Follow redirects, each one checked like the first URL."""
        started = _now()
        trip = _Trip(started, started + self.limits.total_s)
        target = read_url(url, self._lines.allowed)
        been = {target.url}
        while True:
            answer = await self._answer(target, trip)
            if answer.location is None:
                return Page(
                    target.url,
                    answer.status,
                    answer.content_type,
                    decode(answer.body, answer.charset),
                    _now() - started,
                    trip.attempts,
                )
            target = self._next(target, answer.location, been)
            self.counts.redirects += 1

    def _next(self, target: Target, location: str, been: set[str]) -> Target:
        """Where a redirect leads; `been` is where this trip was, and grows."""
        if not location:
            raise FetchError("redirect", target.url, "it redirects, but does not say where to.")
        if len(been) > self.limits.max_redirects:
            most = self.limits.max_redirects
            sentence = f"it redirects to {shown(location)}, and max_redirects is {most}."
            raise FetchError("redirect", target.url, sentence)
        following = follow(target, location, self._lines.allowed)
        if following.url in been:
            sentence = f"it redirects in a circle, back to {shown(following.url)}."
            raise FetchError("redirect", target.url, sentence)
        been.add(following.url)
        return following

    async def _answer(self, target: Target, trip: _Trip) -> Answer:
        """One answer, after as many retries as it takes and the limits allow."""
        while True:
            try:
                return await self._attempt(target, trip)
            except FetchError as error:
                pause = self._pause(error, target, trip)
                if pause is None:
                    raise
            trip.retries += 1
            self.counts.retries += 1
            await asyncio.sleep(pause)

    async def _attempt(self, target: Target, trip: _Trip) -> Answer:
        async with self._lines.gate(target).turn(target.url, trip.deadline):
            trip.attempts += 1
            try:
                async with asyncio.timeout_at(trip.deadline):
                    return await self._lines.wire.get(target, self.counts)
            except TimeoutError:
                sentence = f"it took longer than total_s ({self.limits.total_s:g} s)."
                raise FetchError("timeout", target.url, sentence) from None

    def _pause(self, error: FetchError, target: Target, trip: _Trip) -> float | None:
        """How long to wait before asking again, or None if that is not to be done."""
        limits = self.limits
        if not error.transient or trip.retries >= limits.retries:
            return None
        if self._lines.gate(target).is_shut:
            return None
        longest = min(limits.retry_base_s * 2 ** min(trip.retries, _STEEPEST), limits.retry_cap_s)
        pause = self._rng.uniform(0, longest)
        if error.retry_after_s is not None:
            pause = max(pause, min(error.retry_after_s, limits.retry_cap_s))
        return pause if _now() + pause < trip.deadline else None


def _now() -> float:
    return asyncio.get_running_loop().time()
