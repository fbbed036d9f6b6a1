"""Real servers on this machine that answer in bytes, well or badly, and note who came."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

HOME = "127.0.0.1"


def reply(
    body: bytes = b"hello", status: str = "200 OK", sized: bool = True, **headers: str
) -> bytes:
    """A whole answer. A header `content_type="text/html"` is written Content-Type."""
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-').title()}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] if sized else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return reply(b"moved", status, location=location)


class Visitor:
    """One request, and the connection to answer it on."""

    def __init__(self, head: bytes, out: asyncio.StreamWriter, server: Server) -> None:
        self.head = head.decode("latin-1")
        self.path = self.head.split(" ")[1]
        self._out, self._server = out, server

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    async def send(self, data: bytes) -> None:
        self._out.write(data)
        await self._out.drain()
        self._server.bytes_sent += len(data)

    def hang_up(self) -> None:
        """Close in good order."""
        self._out.close()

    def reset(self) -> None:
        """Close with a reset (RST)."""
        raw = self._out.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._out.transport.abort()


Handler = Callable[[Visitor], Awaitable[None]]


def saying(*answers: bytes) -> Handler:
    """Gives the answers in turn, and the last one from then on."""
    left = list(answers)

    async def handle(visitor: Visitor) -> None:
        await visitor.send(left.pop(0) if len(left) > 1 else left[0])

    return handle


def by_path(pages: dict[str, bytes]) -> Handler:
    async def handle(visitor: Visitor) -> None:
        await visitor.send(pages[visitor.path])

    return handle


async def silent(visitor: Visitor) -> None:
    """Reads the request, and that is all."""
    await asyncio.sleep(60)


async def slow_headers(visitor: Visitor) -> None:
    for byte in reply():
        await visitor.send(bytes([byte]))
        await asyncio.sleep(0.05)


async def slow_body(visitor: Visitor) -> None:
    await visitor.send(reply(sized=False, content_length="1000"))
    while True:
        await visitor.send(b".")
        await asyncio.sleep(0.02)


class Server:
    """Listens on a port of its own, or on `port` again after it was closed."""

    def __init__(
        self,
        handler: Handler | None = None,
        host: str = HOME,
        port: int = 0,
        secure: ssl.SSLContext | None = None,
    ) -> None:
        self._handler, self._secure = handler or saying(reply()), secure
        self.host, self.port = host, port
        self.paths: list[str] = []
        self.visitors: list[Visitor] = []
        self.connections = 0
        self.open_connections = 0
        self.bytes_sent = 0
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.address}{path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._welcome, self.host, self.port, ssl=self._secure
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _welcome(self, asks: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._talk(asks, out))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, asks: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while not out.is_closing():
                    visitor = Visitor(await asks.readuntil(b"\r\n\r\n"), out, self)
                    self.paths.append(visitor.path)
                    self.visitors.append(visitor)
                    await self._handler(visitor)
            out.close()
        except asyncio.CancelledError:
            out.transport.abort()
            raise
        finally:
            self.open_connections -= 1


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOME, 0))
        return int(probe.getsockname()[1])
