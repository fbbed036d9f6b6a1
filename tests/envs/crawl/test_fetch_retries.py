"""What is asked for again, how often, and after which pause."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from fetching import PATIENT, Run, refused
from servers import Server, redirect, reply, saying

from stoker.envs.crawl.fetch import Fetcher


@pytest.mark.parametrize("status", ["500 Oops", "501 No", "505 No"])
def test_a_server_error_is_not_asked_for_again(run: Run, status: str) -> None:
    async def test() -> None:
        limits = replace(PATIENT, retries=3)
        async with Server(saying(reply(b"", status))) as server, Fetcher(limits) as fetcher:
            error = await refused(fetcher, server.url(), "status")
            assert status in str(error)
            assert (len(server.paths), fetcher.counts.requests, fetcher.counts.retries) == (1, 1, 0)

    run(test())


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "410 Gone", "201 Made"])
def test_other_statuses_are_answers(run: Run, status: str) -> None:
    async def test() -> None:
        async with Server(saying(reply(b"so", status))) as server, Fetcher(PATIENT) as fetcher:
            page = await fetcher.get(server.url())
            assert (page.status, page.text) == (int(status[:3]), "so")

    run(test())


@pytest.mark.parametrize("status", ["429 Slow Down", "502 Bad", "503 Busy", "504 Late"])
def test_a_fault_that_passes_is_asked_for_again(run: Run, status: str) -> None:
    async def test() -> None:
        fault = reply(b"", status)
        limits = replace(PATIENT, retries=3)
        async with (
            Server(saying(fault, fault, reply(b"back"))) as server,
            Fetcher(limits) as fetcher,
        ):
            page = await fetcher.get(server.url())
            assert (page.text, page.attempts) == ("back", 3)
            assert len(server.paths) == fetcher.counts.requests == 3
            assert (fetcher.counts.retries, fetcher.counts.pages) == (2, 1)
            assert not fetcher.counts.failures

    run(test())


def test_retries_are_bounded(run: Run) -> None:
    async def test() -> None:
        limits = replace(PATIENT, retries=2)
        busy = saying(reply(b"", "503 Busy"))
        async with Server(busy) as server, Fetcher(limits) as fetcher:
            await refused(fetcher, server.url(), "status")
            assert len(server.paths) == fetcher.counts.requests == 3
            assert fetcher.counts.retries == 2
            assert fetcher.counts.failures == {"status": 1}

    run(test())


def test_retries_are_for_the_whole_trip(run: Run) -> None:
    async def test() -> None:
        busy = reply(b"", "503 Busy")
        answers = saying(busy, redirect("/b"), busy, redirect("/c"), busy, reply())
        async with Server(answers) as server, Fetcher(replace(PATIENT, retries=2)) as fetcher:
            await refused(fetcher, server.url("/a"), "status")
            assert server.paths == ["/a", "/a", "/b", "/b", "/c"]
            assert (fetcher.counts.retries, fetcher.counts.redirects) == (2, 2)

    run(test())


@pytest.mark.parametrize(
    ("wait", "heeded"),
    [
        ("60", True),
        ("Tue, 01 Jan 2999 00:00:00 GMT", True),
        ("Tue, 01 Jan 1980 00:00:00 GMT", False),
        ("soon", False),
        ("-60", False),
        ("9" * 400, True),
    ],
)
def test_retry_after_is_heeded_up_to_the_cap(run: Run, wait: str, heeded: bool) -> None:
    pauses = []

    async def test() -> None:
        busy = reply(b"", "503 Busy", retry_after=wait)
        limits = replace(PATIENT, retries=1, retry_base_s=0, retry_cap_s=0.05)
        async with Server(saying(busy, reply())) as server, Fetcher(limits) as fetcher:
            with pytest.MonkeyPatch.context() as patch:
                sleep = asyncio.sleep
                patch.setattr(asyncio, "sleep", lambda pause: pauses.append(pause) or sleep(pause))
                assert (await fetcher.get(server.url())).attempts == 2

    run(test())
    assert pauses == [0.05 if heeded else 0]


def test_pauses_are_drawn_from_the_generator_given(run: Run) -> None:
    """Full jitter: between nothing and a bound that doubles, up to the cap."""

    class Noted(random.Random):
        bounds: list[tuple[float, float]] = []

        def uniform(self, a: float, b: float) -> float:
            self.bounds.append((a, b))
            return 0.0

    async def test() -> None:
        Noted.bounds.clear()
        limits = replace(PATIENT, retries=5, retry_base_s=0.5, retry_cap_s=3)
        busy = saying(reply(b"", "503 Busy"))
        async with Server(busy) as server, Fetcher(limits, rng=Noted()) as fetcher:
            await refused(fetcher, server.url(), "status")
        assert Noted.bounds == [(0, 0.5), (0, 1), (0, 2), (0, 3), (0, 3)]

    run(test())
