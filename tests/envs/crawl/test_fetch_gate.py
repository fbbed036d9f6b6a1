"""The breaker, the pace and the places of a host, and fetchers that share them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from fetching import PATIENT, Run, refused
from servers import HOME, Server, Visitor, closed_port, reply, saying, silent

from stoker.envs.crawl import gate
from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.fetch import Fetcher

FRAIL = replace(PATIENT, breaker_failures=3, breaker_cooldown_s=1000)


class Clock:
    """The gate's clock, which can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(gate, "_now", clock)
    return clock


def test_a_server_that_goes_away_and_comes_back(run: Run, clock: Clock) -> None:
    async def test() -> None:
        async with Fetcher(FRAIL) as fetcher:
            async with Server() as server:
                url = server.url()
                await fetcher.get(url)
            for _ in range(3):
                await refused(fetcher, url, "connection")
            error = await refused(fetcher, url, "circuit-open")
            assert "3 times in a row" in str(error)
            clock.ahead += 1001
            await refused(fetcher, url, "connection")
            clock.ahead += 999
            await refused(fetcher, url, "circuit-open")
            async with Server(port=server.port) as back:
                clock.ahead += 1001
                for _ in range(5):
                    assert (await fetcher.get(url)).status == 200
                assert len(back.paths) == 5
            assert fetcher.counts.failures == {"connection": 4, "circuit-open": 2}

    run(test())


def test_while_it_is_open_nothing_is_sent(run: Run) -> None:
    async def test() -> None:
        failing = saying(reply(b"", "500 Oops"))
        async with Server(failing) as server, Server() as other, Fetcher(FRAIL) as fetcher:
            for _ in range(3):
                await refused(fetcher, server.url(), "status")
            for _ in range(20):
                await refused(fetcher, server.url(), "circuit-open")
            assert len(server.paths) == fetcher.counts.requests == 3
            assert fetcher.counts.failures == {"status": 3, "circuit-open": 20}
            assert (await fetcher.get(other.url())).status == 200

    run(test())


ANSWERS = pytest.mark.parametrize(
    "answer",
    [
        reply(),
        reply(b"", "404 Not Found"),
        reply(b"x" * (PATIENT.max_body_bytes + 1)),
        reply(content_encoding="br"),
    ],
    ids=["page", "missing", "too-large", "encoding"],
)
"""Answers, whether we have a use for them or not: none is a failure of the host."""


@ANSWERS
def test_any_answer_ends_a_row_of_failures(run: Run, answer: bytes) -> None:
    async def test() -> None:
        bad = reply(b"", "500 Oops")
        async with (
            Server(saying(bad, bad, answer, bad, bad, answer)) as server,
            Fetcher(FRAIL) as fetcher,
        ):
            for _ in range(6):
                await asyncio.gather(fetcher.get(server.url()), return_exceptions=True)
            assert len(server.paths) == 6
            assert fetcher.counts.failures["status"] == 4

    run(test())


@ANSWERS
def test_no_answer_opens_the_breaker(run: Run, answer: bytes) -> None:
    async def test() -> None:
        async with Server(saying(answer)) as server, Fetcher(FRAIL) as fetcher:
            for _ in range(10):
                await asyncio.gather(fetcher.get(server.url()), return_exceptions=True)
            assert len(server.paths) == 10
            assert fetcher.counts.failures["circuit-open"] == 0

    run(test())


def test_those_who_queue_when_it_opens_are_refused_as_well(run: Run) -> None:
    async def test() -> None:
        queued = asyncio.Event()

        async def fail_late(visitor: Visitor) -> None:
            await queued.wait()
            await visitor.send(reply(b"", "500 Oops"))

        limits = replace(FRAIL, breaker_failures=1, max_connections=1)
        async with Server(fail_late) as server, Fetcher(limits) as fetcher:
            gets = [asyncio.create_task(fetcher.get(server.url())) for _ in range(5)]
            while not server.paths:
                await asyncio.sleep(0.005)
            queued.set()
            await asyncio.gather(*gets, return_exceptions=True)
            assert len(server.paths) == 1
            assert fetcher.counts.failures == {"status": 1, "circuit-open": 4}

    run(test())


def test_the_error_behind_an_open_breaker_is_told_not_the_breaker(run: Run) -> None:
    """Retries end when they open the breaker, with what went wrong."""

    async def test() -> None:
        async with Fetcher(replace(FRAIL, retries=10)) as fetcher:
            url = f"http://{HOME}:{closed_port()}/"
            await refused(fetcher, url, "connection")
            assert fetcher.counts.retries == 2
            await refused(fetcher, url, "circuit-open")

    run(test())


def test_one_trial_at_a_time(run: Run, clock: Clock) -> None:
    async def test() -> None:
        recovering = asyncio.Event()

        async def slow_to_recover(visitor: Visitor) -> None:
            if visitor.path == "/bad":
                await visitor.send(reply(b"", "500 Oops"))
            else:
                await recovering.wait()
                await visitor.send(reply())

        async with Server(slow_to_recover) as server, Fetcher(FRAIL) as fetcher:
            for _ in range(3):
                await refused(fetcher, server.url("/bad"), "status")
            clock.ahead += 1001
            trial = asyncio.create_task(fetcher.get(server.url("/trial")))
            while "/trial" not in server.paths:
                await asyncio.sleep(0.005)
            await refused(fetcher, server.url("/other"), "circuit-open")
            recovering.set()
            assert (await trial).status == 200
            assert (await fetcher.get(server.url("/after"))).status == 200
            assert server.paths == ["/bad"] * 3 + ["/trial", "/after"]

    run(test())


def test_a_trial_that_is_cancelled_leaves_room_for_another(run: Run, clock: Clock) -> None:
    async def test() -> None:
        async def handler(visitor: Visitor) -> None:
            if visitor.path == "/silent":
                await silent(visitor)
            status = "500 Oops" if visitor.path == "/bad" else "200 OK"
            await visitor.send(reply(status=status))

        async with Server(handler) as server, Fetcher(FRAIL) as fetcher:
            for _ in range(3):
                await refused(fetcher, server.url("/bad"), "status")
            clock.ahead += 1001
            trial = asyncio.create_task(fetcher.get(server.url("/silent")))
            while "/silent" not in server.paths:
                await asyncio.sleep(0.005)
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
            assert (await fetcher.get(server.url("/good"))).status == 200

    run(test())


def test_requests_keep_their_pace_and_their_order(run: Run) -> None:
    async def test() -> None:
        came: list[float] = []

        async def note(visitor: Visitor) -> None:
            came.append(time.monotonic())
            await visitor.send(reply())

        limits = replace(PATIENT, requests_per_s=50)
        async with Server(note) as server, Fetcher(limits) as fetcher:
            paths = [f"/{number}" for number in range(11)]
            begun = time.monotonic()
            await asyncio.gather(*(fetcher.get(server.url(path)) for path in paths))
            assert server.paths == paths
            for index, moment in enumerate(came):
                assert moment - begun >= index / 50 - 0.05

    run(test())


def test_a_turn_that_cannot_come_in_time_is_not_waited_for(run: Run) -> None:
    async def test() -> None:
        limits = replace(PATIENT, requests_per_s=0.01)
        async with Server() as server, Fetcher(limits) as fetcher:
            await fetcher.get(server.url())
            begun = time.monotonic()
            error = await refused(fetcher, server.url(), "timeout")
            assert "turn" in str(error)
            assert time.monotonic() - begun < 10
            assert len(server.paths) == 1

    run(test())


def test_so_many_at_a_time_and_no_more(run: Run) -> None:
    async def test() -> None:
        under_way, most = 0, 0

        async def busy(visitor: Visitor) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            await visitor.send(reply())

        limits = replace(PATIENT, max_connections=4)
        async with Server(busy) as server, Fetcher(limits) as fetcher:
            await asyncio.gather(*(fetcher.get(server.url(f"/{n}")) for n in range(24)))
            assert most == server.connections == 4

    run(test())


def test_no_place_in_time_is_not_the_fault_of_the_host(run: Run) -> None:
    async def test() -> None:
        door = gate.HostGate(replace(PATIENT, max_connections=1, breaker_failures=1))
        now = asyncio.get_running_loop().time()
        async with door.turn("http://a/", now + 1000):
            with pytest.raises(FetchError, match="turn did not come") as caught:
                async with door.turn("http://b/", now + 0.05):
                    pytest.fail("two at a time")
            assert caught.value.kind == "timeout"
        assert not door.is_shut

    run(test())


def test_fetchers_of_a_loop_share_connections_and_breakers(run: Run) -> None:
    async def test() -> None:
        async with Server() as server:
            first, second = Fetcher.shared(FRAIL), Fetcher.shared(replace(FRAIL))
            await first.get(server.url("/1"))
            await second.get(server.url("/2"))
            assert server.connections == 1
            assert (first.counts.connections, second.counts.connections) == (1, 0)
            assert (first.counts.requests, second.counts.requests) == (1, 1)
            gone = f"http://{HOME}:{closed_port()}/"
            for _ in range(3):
                await refused(first, gone, "connection")
            await refused(second, gone, "circuit-open")
            await first.close()
            await first.close()
            await second.get(server.url("/3"))
            assert server.connections == 1
            await second.close()

    run(test())


def test_a_shared_fetcher_begins_anew_after_the_last_was_closed(run: Run) -> None:
    async def test() -> None:
        async with Server() as server:
            for round_ in range(3):
                async with Fetcher.shared(FRAIL) as fetcher, Fetcher.shared(PATIENT) as other:
                    await fetcher.get(server.url())
                    await other.get(server.url())
                assert server.connections == 2 * (round_ + 1)

    run(test())
