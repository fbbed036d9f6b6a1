"""The server's side of HTTP: requests in any pieces, answers in order, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.envs.crawl.connection import Connection, Reply, reply

Run = Callable[[Coroutine[Any, Any, None]], None]

PAGE = reply(200, "a page\n")
HOST = "Host: x\r\n"


class Talk:
    """A server with one client; `asked` are the requests that it was given to answer."""

    def __init__(self, by_itself: Reply | None) -> None:
        self.by_itself = by_itself
        self.asked: list[tuple[str, str]] = []
        self.ended = asyncio.Event()

    def _handle(self, client: Connection, method: str, address: str) -> None:
        self.asked.append((method, address))
        self.server_side = client
        if self.by_itself:
            client.answer(self.by_itself)

    def _connection(self) -> Connection:
        talk = self

        class Watched(Connection):
            def connection_lost(self, error: Exception | None) -> None:
                super().connection_lost(error)
                talk.ended.set()

        return Watched(self._handle)

    def send(self, data: str | bytes) -> None:
        self.out.write(data.encode("latin-1") if isinstance(data, str) else data)

    async def head(self) -> str:
        return (await self.answers.readuntil(b"\r\n\r\n")).decode()

    async def page(self) -> str:
        """The next answer, which has to be a page."""
        head = await self.head()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert await self.answers.readexactly(len(b"a page\n")) == b"a page\n"
        return head

    async def until_asked(self, count: int) -> None:
        while len(self.asked) < count:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def talking(by_itself: Reply | None = PAGE) -> AsyncIterator[Talk]:
    """Answers every request with the page, or leaves it to the test."""
    talk = Talk(by_itself)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(talk._connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    talk.answers, talk.out = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield talk
    finally:
        talk.out.close()
        server.close()
        await talk.ended.wait()


def test_a_request_may_come_byte_by_byte(run: Run) -> None:
    async def test() -> None:
        async with talking() as talk:
            for number in range(2):
                for byte in f"GET /{number} HTTP/1.1\r\n{HOST}Accept: */*\r\n\r\n".encode():
                    talk.send(bytes([byte]))
                    await asyncio.sleep(0)
                assert "Connection" not in await talk.page()
            assert talk.asked == [("GET", "/0"), ("GET", "/1")]

    run(test())


def test_requests_sent_at_once_are_answered_one_by_one_in_order(run: Run) -> None:
    async def test() -> None:
        async with talking(None) as talk:
            talk.send("".join(f"GET /{n} HTTP/1.1\r\n{HOST}\r\n" for n in range(3)))
            for number in range(4):
                await talk.until_asked(number + 1)
                if number == 0:
                    talk.send(f"GET /3 HTTP/1.1\r\n{HOST}\r\n")
                    await asyncio.sleep(0.02)
                assert talk.asked[number:] == [("GET", f"/{number}")], "the next one waits"
                talk.server_side.answer(reply(200, f"{number}"))
                await talk.head()
                assert await talk.answers.readexactly(1) == f"{number}".encode()

    run(test())


def test_thousands_of_requests_sent_at_once_are_all_answered(run: Run) -> None:
    """More than may wait unread, and more than calls may nest."""

    async def test() -> None:
        async with talking() as talk:
            talk.send("".join(f"GET /{n} HTTP/1.1\r\n{HOST}\r\n" for n in range(5000)))
            for _ in range(5000):
                await talk.page()
            assert talk.asked == [("GET", f"/{n}") for n in range(5000)]

    run(test())


def test_a_client_that_does_not_read_is_not_answered_further(run: Run) -> None:
    large = reply(200, b"x" * 8_000_000)

    async def test() -> None:
        async with talking(large) as talk:
            talk.out.transport.pause_reading()  # type: ignore[attr-defined]
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n" * 10)
            await talk.until_asked(1)
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert len(talk.asked) < 5
            talk.out.transport.resume_reading()  # type: ignore[attr-defined]
            assert await talk.answers.readexactly(10 * len(large.whole)) == 10 * large.whole

    run(test())


def test_of_what_waits_for_its_turn_only_so_much_is_read(run: Run) -> None:
    async def test() -> None:
        async with talking(None) as talk:
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n" * 300_000)
            await talk.until_asked(1)
            await asyncio.sleep(0.1)
            assert len(talk.server_side._unread) < 1_000_000
            talk.server_side.drop()

    run(test())


def test_what_waits_for_its_turn_is_forgotten_when_the_connection_ends(run: Run) -> None:
    class Transport:
        def write(self, data: bytes) -> None:
            pass

    async def test() -> None:
        talk = Talk(PAGE)
        connection = talk._connection()
        connection.connection_made(Transport())  # type: ignore[arg-type]
        connection.data_received(f"GET / HTTP/1.1\r\n{HOST}\r\n".encode() * 2)
        connection.connection_lost(None)
        await asyncio.sleep(0.01)
        assert len(talk.asked) == 1

    run(test())


def test_empty_lines_before_a_request_are_passed_over(run: Run) -> None:
    async def test() -> None:
        async with talking() as talk:
            for piece in ("\r\n", "\r", f"\nGET / HTTP/1.1\r\n{HOST}\r\n"):
                talk.send(piece)
                await asyncio.sleep(0.005)
            await talk.page()

    run(test())


@pytest.mark.parametrize(
    ("version", "header", "told", "stays"),
    [
        ("1.1", "", None, True),
        ("1.1", "Connection: keep-alive\r\n", None, True),
        ("1.1", "Connection: close\r\n", "close", False),
        ("1.1", "CONNECTION:Keep-Alive , CLOSE\r\n", "close", False),
        ("1.0", "", "close", False),
        ("1.0", "Connection: keep-alive\r\n", "keep-alive", True),
        ("1.0", "Connection: keep-alive, close\r\n", "close", False),
    ],
)
def test_a_connection_is_kept_as_long_as_the_client_wishes(
    run: Run, version: str, header: str, told: str | None, stays: bool
) -> None:
    async def test() -> None:
        async with talking() as talk:
            talk.send(f"GET / HTTP/{version}\r\n{HOST}{header}\r\n")
            head = await talk.page()
            assert (f"\r\nConnection: {told}\r\n" in head) == (told is not None)
            assert ("Connection" in head) == (told is not None)
            if stays:
                talk.send(f"GET / HTTP/{version}\r\n{HOST}{header}\r\n")
                await talk.page()
            else:
                assert await talk.answers.read() == b""

    run(test())


def test_head_gets_the_head_alone(run: Run) -> None:
    async def test() -> None:
        async with talking() as talk:
            talk.send(f"HEAD / HTTP/1.1\r\n{HOST}\r\n")
            assert "\r\nContent-Length: 7\r\n" in await talk.head()
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n")
            await talk.page()
            talk.send(f"HEAD / HTTP/1.0\r\n{HOST}\r\n")
            assert (await talk.answers.read()).endswith(b"\r\n\r\n")
        async with talking(None) as talk:
            talk.send(f"HEAD / HTTP/1.1\r\n{HOST}\r\n")
            await talk.until_asked(1)
            talk.server_side.trickle(PAGE, 0.01)
            assert "\r\nContent-Length: 7\r\n" in await talk.head()
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n")
            await talk.until_asked(2)
            talk.server_side.answer(PAGE)
            await talk.page()

    run(test())


@pytest.mark.parametrize("size", [0, 7, 8, 9, 1001])
def test_a_body_that_trickles_arrives_whole_and_the_next_answer_after_it(
    run: Run, size: int
) -> None:
    given = reply(200, bytes(number % 251 for number in range(size)))

    async def test() -> None:
        async with talking(None) as talk:
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n" * 2)
            await talk.until_asked(1)
            talk.server_side.trickle(given, 0.01)
            assert await talk.answers.readexactly(len(given.whole)) == given.whole
            await talk.until_asked(2)
            talk.server_side.answer(PAGE)
            await talk.page()

    run(test())


REQUEST = "GET / HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        *((line, 400) for line in ("\x16\x03\x01\x02\x00", "\xff", " GET", "\x00", "\r\r\n")),
        *((f"{line}\r\n", 400) for line in ("GET", "GET /", "GET  / HTTP/1.1", "GET / HTTP/2.0")),
        *(
            (f"{line}\r\n", 400)
            for line in ("GET /\xe9 HTTP/1.1", "GET /\t HTTP/1.1", "G(T / HTTP/1.1")
        ),
        ("GET / HTTP/1.1\n\n", 400),
        *(
            (f"{REQUEST}{line}\r\n\r\n", 400)
            for line in ("no colon", ": no name", "a b: c", "a : b")
        ),
        *(
            (f"{REQUEST}{line}\r\n\r\n", 400)
            for line in ("a: b\nc: d", "a: \x00", "a: b\r\n folded")
        ),
        *((f"{REQUEST}Content-Length: {n}\r\n\r\n", 400) for n in ("-1", "x", "", "1,1", "+1")),
        (f"{REQUEST}Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello", 413),
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        ("GET /" + "x" * 20_000, 431),
        (f"GET /{'x' * 20_000} HTTP/1.1\r\n\r\n", 431),
        (REQUEST + "a: b\r\n" * 4000, 431),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_answered_is_refused_and_ends_the_connection(
    run: Run, sent: str, status: int
) -> None:
    async def test() -> None:
        async with talking() as talk:
            talk.send(sent)
            head = await talk.head()
            assert head.startswith(f"HTTP/1.1 {status} ")
            assert "\r\nConnection: close\r\n" in head
            assert (await talk.answers.read()).endswith(b"\n")
            assert talk.asked == []

    run(test())


def test_a_client_that_reads_only_after_sending_gets_to_know_why_it_was_refused(run: Run) -> None:
    async def test() -> None:
        async with talking() as talk:
            talk.out.transport.pause_reading()  # type: ignore[attr-defined]
            talk.out.transport.set_write_buffer_limits(0)
            talk.send(b"POST / HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 8_000_000)
            await talk.out.drain()
            talk.out.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await talk.head()).startswith("HTTP/1.1 413 ")

    run(test())


def test_requests_before_a_bad_one_are_answered_and_those_after_it_are_not(run: Run) -> None:
    async def test() -> None:
        async with talking() as talk:
            talk.send(f"GET /1 HTTP/1.1\r\n{HOST}\r\nGET\r\n\r\nGET /2 HTTP/1.1\r\n{HOST}\r\n")
            await talk.page()
            assert (await talk.head()).startswith("HTTP/1.1 400 ")
            await talk.answers.read()
            assert talk.asked == [("GET", "/1")]

    run(test())


def test_one_that_was_refused_and_stays_is_cut_off(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.envs.crawl.connection._LAST_WORDS_S", 0.05)

    async def test() -> None:
        async with talking() as talk:
            talk.send("\x00")
            await talk.ended.wait()

    run(test())


def test_no_body_may_be_said_in_many_ways(run: Run) -> None:
    async def test() -> None:
        async with talking() as talk:
            for header in ("", "Content-Length: 0\r\n", "content-length:  00 \r\n"):
                talk.send(f"POST / HTTP/1.1\r\n{HOST}{header}\r\n")
                await talk.page()
            assert talk.asked == [("POST", "/")] * 3

    run(test())


@pytest.mark.parametrize("manner", ["answer", "trickle", "drop"])
def test_a_client_may_hang_up_before_its_answer(run: Run, manner: str) -> None:
    async def test() -> None:
        async with talking(None) as talk:
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n" * 2)
            await talk.until_asked(1)
            talk.out.transport.abort()
            await talk.ended.wait()
            late = talk.server_side
            if manner == "answer":
                late.answer(PAGE)
            elif manner == "trickle":
                late.trickle(PAGE, 0.01)
            else:
                late.drop()
            await asyncio.sleep(0.02)
            assert len(talk.asked) == 1, "what waited behind it is forgotten"

    run(test())


def test_a_client_may_hang_up_while_a_body_trickles(run: Run) -> None:
    async def test() -> None:
        async with talking(None) as talk:
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n" * 2)
            await talk.until_asked(1)
            talk.server_side.trickle(PAGE, 0.08)
            await talk.head()
            talk.out.transport.abort()
            await talk.ended.wait()
            await asyncio.sleep(0.1)
            assert len(talk.asked) == 1

    run(test())


def test_a_dropped_connection_is_reset(run: Run) -> None:
    async def test() -> None:
        async with talking(None) as talk:
            talk.send(f"GET / HTTP/1.1\r\n{HOST}\r\n")
            await talk.until_asked(1)
            talk.server_side.drop()
            with pytest.raises(ConnectionResetError):
                await talk.answers.read()

    run(test())
