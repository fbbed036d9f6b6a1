"""A page as it comes, connections that are kept, and counts that are exact."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from fetching import PATIENT, Run
from servers import Server, Visitor, reply, saying, silent

from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.fetch import Fetcher


def test_a_page_as_it_came(run: Run) -> None:
    async def test() -> None:
        page = reply("<p>Grüße</p>".encode(), content_type="text/html; charset=utf-8")
        async with Server(saying(page)) as server, Fetcher(PATIENT) as fetcher:
            found = await fetcher.get(server.url("/a?b=c#d"))
            assert found.url == server.url("/a?b=c")
            assert found[1:4] == (200, "text/html", "<p>Grüße</p>")
            assert 0 < found.took_s < 20
            assert found.attempts == 1
            assert server.paths == ["/a?b=c"]
            counts = fetcher.counts
            assert (counts.gets, counts.pages, counts.requests, counts.connections) == (1, 1, 1, 1)
            assert counts.body_bytes == counts.unpacked_bytes == len("<p>Grüße</p>".encode())
            assert not counts.failures

    run(test())


def test_what_is_sent_and_what_is_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy from the environment, no cookies, and only the encodings that we can cap."""

    async def test() -> None:
        async with Server() as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url())
            sets_cookie = saying(reply(set_cookie="id=7; Path=/"))
            async with Server(sets_cookie) as server, Fetcher(PATIENT) as fetcher:
                await fetcher.get(server.url("/1"))
                await fetcher.get(server.url("/2"))
                assert server.paths == ["/1", "/2"]
                for visitor in server.visitors:
                    assert visitor.header("Cookie") is None
                    assert visitor.header("Authorization") is None
                    assert visitor.header("Accept-Encoding") == "gzip, deflate"
                    assert visitor.header("Host") == server.address
            assert proxy.connections == 0

    run(test())


def test_connections_are_kept(run: Run) -> None:
    async def test() -> None:
        async with Server() as server, Fetcher(PATIENT) as fetcher:
            for _ in range(20):
                await fetcher.get(server.url())
            assert len(server.paths) == fetcher.counts.requests == 20
            assert server.connections == fetcher.counts.connections == 1

    run(test())


def test_a_kept_connection_that_was_closed_meanwhile_is_no_fault(run: Run) -> None:
    """Closed just as the next request is sent: asked again at once, even without retries."""

    async def test() -> None:
        async def once_each(visitor: Visitor) -> None:
            if visitor.path == "/second" and server.connections == 1:
                visitor.reset()
            else:
                await visitor.send(reply())

        limits = replace(PATIENT, retries=0, breaker_failures=1)
        async with Server(once_each) as server, Fetcher(limits) as fetcher:
            await fetcher.get(server.url("/first"))
            assert (await fetcher.get(server.url("/second"))).status == 200
            assert server.paths == ["/first", "/second", "/second"]
            counts = fetcher.counts
            assert (counts.requests, counts.resent, counts.retries) == (3, 1, 0)

    run(test())


def test_counts_are_exact_when_many_ask_at_once(run: Run) -> None:
    async def test() -> None:
        """A third each: a page, an error, and one that comes after a retry."""
        seen: dict[str, int] = {}

        async def mixed(visitor: Visitor) -> None:
            seen[visitor.path] = seen.get(visitor.path, 0) + 1
            number = int(visitor.path[1:])
            if number % 3 == 1:
                await visitor.send(reply(b"", "500 Oops"))
            elif number % 3 == 2 and seen[visitor.path] == 1:
                visitor.reset()
            else:
                await visitor.send(reply(b"12345"))

        limits = replace(PATIENT, retries=1, max_connections=8)
        async with Server(mixed) as server, Fetcher(limits) as fetcher:
            urls = [server.url(f"/{number}") for number in range(60)]
            found = await asyncio.gather(*map(fetcher.get, urls), return_exceptions=True)
            counts = fetcher.counts
            assert sum(isinstance(one, FetchError) for one in found) == 20
            assert (counts.gets, counts.pages, counts.failures) == (60, 40, {"status": 20})
            assert counts.requests == len(server.paths) == 80
            assert counts.retries + counts.resent == 20
            assert counts.body_bytes == 40 * 5
            assert counts.connections == server.connections

    run(test())


def test_a_cancelled_fetch_leaves_the_fetcher_well(run: Run) -> None:
    async def test() -> None:
        async def by_turns(visitor: Visitor) -> None:
            if visitor.path == "/silent":
                await silent(visitor)
            await visitor.send(reply())

        limits = replace(PATIENT, max_connections=1, breaker_failures=1)
        async with Server(by_turns) as server, Fetcher(limits) as fetcher:
            task = asyncio.create_task(fetcher.get(server.url("/silent")))
            while not server.paths:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await fetcher.get(server.url("/"))).status == 200
            assert not fetcher.counts.failures

    run(test())


def test_a_closed_fetcher_has_hung_up_and_says_so(run: Run) -> None:
    async def test() -> None:
        async with Server() as server:
            fetcher = Fetcher(PATIENT)
            await fetcher.get(server.url())
            assert server.open_connections == 1
            await fetcher.close()
            await fetcher.close()
            async with asyncio.timeout(10):
                while server.open_connections:
                    await asyncio.sleep(0.005)
            with pytest.raises(RuntimeError, match="closed"):
                await fetcher.get(server.url())

    run(test())


def test_an_error_survives_the_way_from_a_worker() -> None:
    error = FetchError("status", "http://a/\n", "the server answered 503.", True, 2.0)
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.url, again.transient, again.retry_after_s) == (
        "status",
        "http://a/\n",
        True,
        2.0,
    )
    assert str(again) == "http://a/\\n was not fetched (status): the server answered 503."


def test_without_aiohttp_there_is_a_hint_and_only_when_it_is_needed() -> None:
    program = """
import asyncio, sys
sys.modules["aiohttp"] = None
from stoker.envs.crawl.fetch import Fetcher
from stoker.errors import ConfigError
async def make():
    Fetcher()
try:
    asyncio.run(make())
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'stoker[http]'" in done.stdout, done.stderr
