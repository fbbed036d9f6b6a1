"""What the fetchers of an event loop have in common: connections, gates, the allow-list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stoker.envs.crawl.allow import AllowList
from stoker.envs.crawl.gate import HostGate
from stoker.envs.crawl.limits import Limits
from stoker.envs.crawl.urls import Target

if TYPE_CHECKING:
    from stoker.envs.crawl.wire import Resolve

_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Limits, Lines]] = WeakKeyDictionary()


class Lines:
    """Made on a running event loop, for one `Limits`; closed by the last that lets go of it."""

    def __init__(self, limits: Limits, resolve: Resolve | None = None) -> None:
        from stoker.envs.crawl.wire import Wire

        self.limits = limits
        self.allowed = AllowList(limits.allowed_hosts)
        self.wire = Wire(limits, self.allowed, resolve)
        self._gates: dict[tuple[str, int], HostGate] = {}
        self._users = 0

    @classmethod
    def shared(cls, limits: Limits) -> Lines:
        """The lines of the running loop for these limits, made for the first that asks."""
        of_loop = _SHARED.setdefault(asyncio.get_running_loop(), {})
        if limits not in of_loop:
            of_loop[limits] = cls(limits)
        return of_loop[limits]

    def gate(self, target: Target) -> HostGate:
        key = (target.host, target.port)
        if key not in self._gates:
            self._gates[key] = HostGate(self.limits)
        return self._gates[key]

    def take(self) -> None:
        self._users += 1

    async def let_go(self) -> None:
        self._users -= 1
        if self._users:
            return
        of_loop = _SHARED.get(asyncio.get_running_loop(), {})
        if of_loop.get(self.limits) is self:
            del of_loop[self.limits]
        await self.wire.close()
