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
import struct
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.site import PageContent, Site, SiteSettings
from stoker.errors import StokerError

try:
    from aiohttp import ClientError, ClientSession, ClientTimeout, web
except ImportError as error:
    raise StokerError(
        "Serving sites needs aiohttp, which is not installed. Try: pip install 'stoker[http]'"
    ) from error

_HTML = {"Content-Type": "text/html; charset=utf-8"}
_SITES = 128
_PAGES_OF_A_SITE = 256
"""With the sites kept, at most about 150 MB of rendered pages."""
_ADDRESSES = 1 << 18
"""How many addresses are counted for faults before the oldest is forgotten."""
_SEEDS = 10_000
"""For how many seeds requests are counted apart; what the oldest had is added up as `others`."""
_PIECES = 8
"""In how many parts a slow body arrives."""
_LAST_SEED = 2**63 - 1


class SiteServer:
    """Answers requests for pages of any number of sites, and counts them.

    `siblings` are the private ports of the other processes that share the address; `/stats` adds
    up what all of them counted.
    """

    def __init__(self, site: SiteSettings, conduct: Conduct, siblings: Sequence[int] = ()) -> None:
        self._settings = site
        self._conduct = conduct
        self._siblings = siblings
        self._sites: OrderedDict[int, Site] = OrderedDict()
        self._asked: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._by_status: Counter[str] = Counter()
        self._by_seed: OrderedDict[str, int] = OrderedDict()
        self._others = 0
        self._faults: Counter[str] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request."""
        address = request.raw_path
        if not address.startswith("/s/"):
            return await self._own(request, address)
        number, slash, rest = address[3:].partition("/")
        if not number.isascii() or not number.isdecimal() or int(number[:20]) > _LAST_SEED:
            return self._count(None, _plain(404, "A seed is a whole number, as in /s/7/.\n"))
        seed = int(number)
        if request.method not in ("GET", "HEAD"):
            return self._count(seed, _plain(405, "Sites answer GET and HEAD.\n"))
        if not slash:
            return self._count(seed, _plain(301, "", {"Location": f"/s/{seed}/"}))
        if self._conduct.is_calm:
            return self._answer(seed, self._site(seed).page(f"/{rest}"))
        return await self._answer_after_all(request, seed, f"/{rest}")

    def counts(self) -> dict[str, Any]:
        """What this process has counted; looks at `/stats` and `/healthz` are left out."""
        seeds = {**self._by_seed, **({"others": self._others} if self._others else {})}
        return {
            "requests": self._by_status.total(),
            "by_status": dict(sorted(self._by_status.items())),
            "by_seed": seeds,
            "faults": dict(sorted(self._faults.items())),
        }

    async def _own(self, request: web.BaseRequest, address: str) -> web.StreamResponse:
        """What the server says of itself."""
        path, _, query = address.partition("?")
        if path == "/healthz":
            return _plain(200, "ok\n")
        if path == "/stats":
            counts = self.counts() if query == "own" else await self._counts_of_all()
            return web.Response(text=json.dumps(counts), content_type="application/json")
        if path == "/":
            return _plain(200, "Each seed has a site, as /s/1/. Counts are at /stats.\n")
        return self._count(None, _plain(404, "Sites lie under /s/SEED/.\n"))

    async def _counts_of_all(self) -> dict[str, Any]:
        found = [self.counts()]
        if self._siblings:
            async with ClientSession(timeout=ClientTimeout(total=2)) as client:
                others = (_counts_at(client, port) for port in self._siblings)
                found += [counts for counts in await asyncio.gather(*others) if counts]
        total: dict[str, Any] = {"requests": sum(counts["requests"] for counts in found)}
        for name in ("by_status", "by_seed", "faults"):
            summed: Counter[str] = Counter()
            for counts in found:
                summed.update(counts[name])
            total[name] = dict(sorted(summed.items()))
        return {**total, "processes": len(found)}

    async def _answer_after_all(
        self, request: web.BaseRequest, seed: int, address: str
    ) -> web.StreamResponse:
        """The answer with its delay and its fault, if any."""
        fate = self._conduct.fate(seed, address, self._times_asked(seed, address))
        if fate.delay > 0:
            await asyncio.sleep(fate.delay)
        if fate.fault == "error":
            self._faults["error"] += 1
            return self._count(seed, _plain(500, "Something went wrong, as asked for.\n"))
        if fate.fault == "reset":
            self._faults["reset"] += 1
            self._tally(seed, "reset")
            _drop(request)
            return web.Response()
        page = self._site(seed).page(address, broken=fate.fault == "broken")
        if page is None or fate.fault is None:
            return self._answer(seed, page)
        self._faults[fate.fault] += 1
        if fate.fault == "broken":
            return self._answer(seed, page)
        self._tally(seed, "200")
        return await _trickle(request, page.body, self._conduct.slow_seconds)

    def _answer(self, seed: int, page: PageContent | None) -> web.Response:
        if page is None:
            return self._count(seed, _plain(404, "There is no such page.\n"))
        return self._count(seed, web.Response(body=page.body, headers=_HTML))

    def _site(self, seed: int) -> Site:
        site = self._sites.get(seed)
        if site is None:
            settings = replace(self._settings, seed=seed)
            site = Site(settings, prefix=f"/s/{seed}", cached=_PAGES_OF_A_SITE)
            self._sites[seed] = site
            if len(self._sites) > _SITES:
                self._sites.popitem(last=False)
        else:
            self._sites.move_to_end(seed)
        return site

    def _times_asked(self, seed: int, address: str) -> int:
        key = (seed, address)
        count = self._asked.pop(key, 0)
        self._asked[key] = count + 1
        if len(self._asked) > _ADDRESSES:
            self._asked.popitem(last=False)
        return count

    def _count(self, seed: int | None, response: web.Response) -> web.Response:
        self._tally(seed, str(response.status))
        return response

    def _tally(self, seed: int | None, status: str) -> None:
        self._by_status[status] += 1
        if seed is not None:
            key = str(seed)
            self._by_seed[key] = self._by_seed.pop(key, 0) + 1
            if len(self._by_seed) > _SEEDS:
                self._others += self._by_seed.popitem(last=False)[1]


def _plain(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=text, headers=headers)


async def _counts_at(client: ClientSession, port: int) -> dict[str, Any] | None:
    """What a sibling counted; None where it does not say."""
    try:
        async with client.get(f"http://127.0.0.1:{port}/stats?own") as response:
            counts: dict[str, Any] = await response.json()
            return counts
    except (ClientError, OSError, TimeoutError):
        return None


def _drop(request: web.BaseRequest) -> None:
    """Ends the connection with a reset, as a crashing server would."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _trickle(request: web.BaseRequest, body: bytes, seconds: float) -> web.StreamResponse:
    response = web.StreamResponse(headers={**_HTML, "Content-Length": str(len(body))})
    with contextlib.suppress(ConnectionError):  # whoever asked may have lost patience
        await response.prepare(request)
        size = -(-len(body) // _PIECES)
        for start in range(0, len(body), size):
            await response.write(body[start : start + size])
            await asyncio.sleep(seconds / _PIECES)
        await response.write_eof()
    return response


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

    web_server = web.Server(server.handle, access_log=None)
    listeners = [
        await loop.create_server(web_server, sock=each, backlog=1024) for each in listening
    ]
    threading.Thread(target=watch, daemon=True).start()
    os.write(1, b"r")  # one byte is never read in halves
    await over.wait()
    for listener in listeners:
        listener.close()
    await web_server.shutdown(0.1)


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
