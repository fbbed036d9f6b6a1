"""Synthetic sites over HTTP: one server has a site for every seed, under `/s/SEED/`.

`python -m stoker.envs.crawl.serve JSON` is one server process, which `launch.py` starts. It leaves
when its standard input ends, and so when whoever started it is gone, for whatever reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from stoker.envs.crawl.conduct import Conduct, Fault
from stoker.envs.crawl.connection import Connection, Reply, reply
from stoker.envs.crawl.shelf import Shelf
from stoker.envs.crawl.site import SiteSettings

_ADDRESSES = 1 << 18
"""How many addresses are counted for faults before the oldest is forgotten."""
_SEEDS = 10_000
"""For how many seeds requests are counted apart; what the oldest had is added up as `others`."""
_SIBLING_S = 2.0
"""How long a sibling may take to say what it counted."""
_LAST_SEED = 2**63 - 1

_WELCOME = reply(200, "Each seed has a site, as /s/1/. Counts are at /stats.\n")
_HEALTHY = reply(200, "ok\n")
_NO_SEED = reply(404, "A seed is a whole number, as in /s/7/.\n")
_NO_PAGE = reply(404, "There is no such page.\n")
_NOTHING = reply(404, "Sites lie under /s/SEED/.\n")
_NO_METHOD = reply(405, "Sites answer GET and HEAD.\n", Allow="GET, HEAD")
_ERROR = reply(500, "Something went wrong, as asked for.\n")


class SiteServer:
    """Answers requests for pages of any number of sites, and counts them.

    `siblings` are the private ports of the other processes that share the address; `/stats` adds
    up what all of them counted.
    """

    def __init__(self, site: SiteSettings, conduct: Conduct, siblings: Sequence[int] = ()) -> None:
        self._shelf = Shelf(site)
        self._conduct = conduct
        self._is_calm = conduct.is_calm
        self._siblings = siblings
        self._inquiries: set[asyncio.Task[None]] = set()
        self._asked: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._by_status: Counter[str] = Counter()
        self._by_seed: OrderedDict[str, int] = OrderedDict()
        self._others = 0
        self._faults: Counter[str] = Counter()

    def handle(self, client: Connection, method: str, address: str) -> None:
        """Answers one request, now or later."""
        if not address.startswith("/s/"):
            self._own(client, method, address)
            return
        number, slash, rest = address[3:].partition("/")
        seed = _seed(number)
        if seed is None:
            self._answer(client, None, _NO_SEED)
        elif method not in ("GET", "HEAD"):
            self._answer(client, seed, _NO_METHOD)
        elif not slash:
            self._answer(client, seed, reply(301, "", Location=f"/s/{seed}/"))
        elif self._is_calm:
            self._answer(client, seed, self._shelf.page(seed, f"/{rest}") or _NO_PAGE)
        else:
            self._answer_later(client, seed, f"/{rest}")

    def counts(self) -> dict[str, Any]:
        """What this process has counted; looks at `/stats` and `/healthz` are left out."""
        seeds = {**self._by_seed, **({"others": self._others} if self._others else {})}
        return {
            "requests": self._by_status.total(),
            "by_status": dict(sorted(self._by_status.items())),
            "by_seed": seeds,
            "faults": dict(sorted(self._faults.items())),
        }

    def _own(self, client: Connection, method: str, address: str) -> None:
        """What the server says of itself."""
        path, _, query = address.partition("?")
        if method not in ("GET", "HEAD"):
            self._answer(client, None, _NO_METHOD)
        elif path == "/healthz":
            client.answer(_HEALTHY)
        elif path == "/stats" and query == "own":
            client.answer(_as_json(self.counts()))
        elif path == "/stats":
            inquiry = asyncio.create_task(self._tell_all_counts(client))
            self._inquiries.add(inquiry)  # a task that nobody keeps may vanish
            inquiry.add_done_callback(self._inquiries.discard)
        elif path == "/":
            client.answer(_WELCOME)
        else:
            self._answer(client, None, _NOTHING)

    async def _tell_all_counts(self, client: Connection) -> None:
        told = await asyncio.gather(*(_counts_at(port) for port in self._siblings))
        client.answer(_as_json(_sum([self.counts(), *(counts for counts in told if counts)])))

    def _answer_later(self, client: Connection, seed: int, address: str) -> None:
        """Answers with a delay and a fault, if any. What is delayed counts when its time comes,
        whether or not the client is still there."""
        fate = self._conduct.fate(seed, address, self._times_asked(seed, address))
        if fate.delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(fate.delay, self._answer_with, fate.fault, client, seed, address)
        else:
            self._answer_with(fate.fault, client, seed, address)

    def _answer_with(
        self, fault: Fault | None, client: Connection, seed: int, address: str
    ) -> None:
        if fault == "error":
            self._faults["error"] += 1
            self._answer(client, seed, _ERROR)
            return
        if fault == "reset":
            self._faults["reset"] += 1
            self._tally(seed, "reset")
            client.drop()
            return
        page = self._shelf.page(seed, address, broken=fault == "broken")
        if page is not None and fault is not None:
            self._faults[fault] += 1
        if page is not None and fault == "slow":
            self._tally(seed, "200")
            client.trickle(page, self._conduct.slow_seconds)
        else:
            self._answer(client, seed, page or _NO_PAGE)

    def _times_asked(self, seed: int, address: str) -> int:
        key = (seed, address)
        count = self._asked.pop(key, 0)
        self._asked[key] = count + 1
        if len(self._asked) > _ADDRESSES:
            self._asked.popitem(last=False)
        return count

    def _answer(self, client: Connection, seed: int | None, given: Reply) -> None:
        self._tally(seed, str(given.status))
        client.answer(given)

    def _tally(self, seed: int | None, status: str) -> None:
        self._by_status[status] += 1
        if seed is not None:
            key = str(seed)
            self._by_seed[key] = self._by_seed.pop(key, 0) + 1
            if len(self._by_seed) > _SEEDS:
                self._others += self._by_seed.popitem(last=False)[1]


def _seed(number: str) -> int | None:
    """The seed that is written there; None where none is."""
    if not (number.isascii() and number.isdecimal() and len(number) <= len(str(_LAST_SEED))):
        return None
    seed = int(number)
    return seed if seed <= _LAST_SEED else None


def _as_json(counts: dict[str, Any]) -> Reply:
    return reply(200, json.dumps(counts), "application/json; charset=utf-8")


def _sum(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several processes counted, added up."""
    total: dict[str, Any] = {"requests": sum(counts["requests"] for counts in found)}
    for name in ("by_status", "by_seed", "faults"):
        summed: Counter[str] = Counter()
        for counts in found:
            summed.update(counts[name])
        total[name] = dict(sorted(summed.items()))
    return {**total, "processes": len(found)}


async def _counts_at(port: int) -> dict[str, Any] | None:
    """What a sibling counted; None where it does not say."""
    try:
        async with asyncio.timeout(_SIBLING_S):
            answers, asks = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(asks):
                asks.write(b"GET /stats?own HTTP/1.0\r\n\r\n")
                answer = await answers.read()
        counts: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, TimeoutError, ValueError):
        return None
    return counts


async def _serve(server: SiteServer, listening: Sequence[socket.socket]) -> None:
    """Serves until standard input ends, then leaves at once; says so once it listens."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(over.set)
        time.sleep(1)
        os._exit(0)  # whatever still holds the loop up

    listeners = [
        await loop.create_server(lambda: Connection(server.handle), sock=each, backlog=1024)
        for each in listening
    ]
    threading.Thread(target=watch, daemon=True).start()
    os.write(1, b"r")  # one byte is never read in halves
    await over.wait()
    for listener in listeners:
        listener.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
            "uvloop"
        ).new_event_loop
    except ImportError:
        return None
    return factory


def _allow_many_connections() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(order: str) -> None:
    """One server process: `order` is what `launch.py` wrote."""
    told = json.loads(order)
    _allow_many_connections()
    server = SiteServer(SiteSettings(**told["site"]), Conduct(**told["conduct"]), told["siblings"])
    listening = [socket.socket(fileno=number) for number in told["sockets"]]
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(server, listening))


if __name__ == "__main__":
    main(sys.argv[1])
