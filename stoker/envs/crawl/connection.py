"""A client's connection to the server of sites: HTTP/1.1, as much of it as GET and HEAD need.

Requests are answered one after another in the order in which they came, however they were cut into
pieces. What cannot be read, is too long or has a body is refused, and ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, cast

_MOST_HEAD = 16 * 1024
"""Bytes of a request's first line and headers, and of requests that wait for their turn."""
_PIECES = 8
"""In how many parts a slow body arrives."""
_LAST_WORDS_S = 1.0
"""How long a client that was refused may go on sending before it is cut off."""

_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIRST_LINE = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.([01])")
_BEGINNING = re.compile(_TOKEN + rb"|\r|$")
_HEADER = re.compile(rb"(" + _TOKEN + rb"):([^\x00-\x08\x0a-\x1f\x7f]*)")


class Reply(NamedTuple):
    """An answer as it is sent."""

    status: int
    whole: bytes
    """Head and body."""
    body_at: int
    """Where in it the body begins."""


def reply(
    status: int,
    body: bytes | str,
    content_type: str = "text/plain; charset=utf-8",
    **headers: str,
) -> Reply:
    """An answer of that status and body, with further headers such as `Location`."""
    coded = body.encode() if isinstance(body, str) else body
    told = {"Content-Type": content_type, "Content-Length": str(len(coded)), **headers}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in told.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return Reply(status, head + coded, len(head))


_UNREADABLE = reply(400, "This is no request that can be read.\n")
_TOO_LONG = reply(431, f"A request's head may have {_MOST_HEAD} bytes.\n")
_HAS_BODY = reply(413, "Requests must have no body.\n")


class Connection(asyncio.Protocol):
    """One connection. `handle` gets it with the method and the address of each request.

    `handle` has to see to it that one of `answer`, `trickle` and `drop` is called for the request,
    now or later; until then the next one waits. They do nothing where the client has hung up.
    """

    def __init__(self, handle: Callable[[Connection, str, str], None]) -> None:
        self._handle = handle
        self._transport: asyncio.Transport | None = None
        """None before the connection is made, and once it has ended."""
        self._unread = bytearray()
        self._is_busy = False
        """Whether a request waits for its answer."""
        self._is_blocked = False
        """Whether the client is slow to read what was sent."""
        self._is_held = False
        """Whether reading pauses, as the client sent far more than was answered."""
        self._is_refused = False
        """Whether what comes is no longer read for its meaning."""
        self._without_body = False
        """Whether the request under way wants the head alone."""
        self._told: bytes | None = None
        """What its answer has to say of the connection; None where nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        # A cast, as uvloop's transports inherit from no class of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has hung up, or was hung up on."""
        self._transport = None
        self._unread.clear()

    def data_received(self, data: bytes) -> None:
        """Some bytes: a request, a piece of one, or several."""
        if self._is_refused:
            return
        self._unread += data
        self._read_request()

    def pause_writing(self) -> None:
        """More was sent than the client has read."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_blocked = False
        self._read_request()

    def answer(self, given: Reply) -> None:
        """Answers the request under way at once."""
        if self._transport is None:
            return
        whole = given.whole[: given.body_at] if self._without_body else given.whole
        self._transport.write(_telling(whole, self._told) if self._told else whole)
        self._finish()

    def trickle(self, given: Reply, seconds: float) -> None:
        """Answers the request under way in pieces, over so many seconds."""
        if self._transport is None or self._without_body:
            self.answer(given)
            return
        head, body = given.whole[: given.body_at], given.whole[given.body_at :]
        size = max(1, -(-len(body) // _PIECES))
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        self._transport.write(_telling(head, self._told) if self._told else head)
        self._send_pieces(pieces, seconds / _PIECES)

    def drop(self) -> None:
        """Ends the connection with a reset, as a crashing server would."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _send_pieces(self, pieces: list[bytes], pause: float) -> None:
        if self._transport is None:
            return
        if pieces:
            self._transport.write(pieces[0])
            asyncio.get_running_loop().call_later(pause, self._send_pieces, pieces[1:], pause)
        else:
            self._finish()

    def _finish(self) -> None:
        """The request under way is answered: on to the next, or to the end."""
        assert self._transport is not None
        if self._told == b"close":
            self._transport.close()
            return
        self._is_busy = False
        if self._unread:  # not from here: as many calls would nest as requests wait
            asyncio.get_running_loop().call_soon(self._read_request)

    def _read_request(self) -> None:
        """Starts on the next request, if its turn has come and all of its head is there."""
        if not (self._is_busy or self._is_blocked or self._is_refused):
            self._start_next()
        self._hold_or_let_go()

    def _start_next(self) -> None:
        while self._unread.startswith(b"\r\n"):  # some send one after a request
            del self._unread[:2]
        end = self._unread.find(_END)
        if end > _MOST_HEAD or (end < 0 and len(self._unread) > _MOST_HEAD):
            self._refuse(_TOO_LONG)
        elif end >= 0:
            head = bytes(self._unread[:end])
            del self._unread[: end + len(_END)]
            self._take(head)
        elif _is_hopeless(self._unread):
            self._refuse(_UNREADABLE)

    def _hold_or_let_go(self) -> None:
        """Stops reading from a client that sends far more than is answered, until it is."""
        is_much = len(self._unread) > _MOST_HEAD
        if is_much == self._is_held or self._transport is None or self._transport.is_closing():
            return
        self._is_held = is_much
        if is_much:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take(self, head: bytes) -> None:
        first, _, rest = head.partition(b"\r\n")
        line = _FIRST_LINE.fullmatch(first)
        said = _read_headers(rest)
        if line is None or said is None:
            self._refuse(_UNREADABLE)
        elif said.has_body:
            self._refuse(_HAS_BODY)
        else:
            method, address, minor = line.groups()
            self._is_busy = True
            self._without_body = method == b"HEAD"
            if minor == b"1":
                self._told = b"close" if said.close else None
            else:
                self._told = b"keep-alive" if said.keep and not said.close else b"close"
            self._handle(self, method.decode(), address.decode())

    def _refuse(self, given: Reply) -> None:
        """Says what is wrong, and hangs up once the client has had a chance to read it.

        To close with bytes unread would reset the connection, and lose what was said.
        """
        assert self._transport is not None
        self._is_refused = True
        self._unread.clear()
        self._transport.write(_telling(given.whole, b"close"))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._transport.abort)


def _is_hopeless(begun: bytearray) -> bool:
    """Whether what has come so far can no longer become a request, and waiting is in vain."""
    first, newline, _ = begun.partition(b"\n")
    if not newline:
        return not _BEGINNING.match(first)
    return not (first.endswith(b"\r") and _FIRST_LINE.fullmatch(first[:-1]))


class _Said(NamedTuple):
    """What a request's headers ask for, as far as it matters here."""

    close: bool
    keep: bool
    has_body: bool


@lru_cache(maxsize=64)  # a client sends the same headers again and again
def _read_headers(lines: bytes) -> _Said | None:
    """None where they cannot be read."""
    options: list[bytes] = []
    has_body = False
    for line in lines.split(b"\r\n") if lines else []:
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        name, value = header[1].lower(), header[2].strip()
        if name == b"connection":
            options += [option.strip().lower() for option in value.split(b",")]
        elif name == b"content-length":
            if not value.isdigit():
                return None
            has_body = has_body or value.strip(b"0") != b""
        elif name == b"transfer-encoding":
            has_body = True
    return _Said(b"close" in options, b"keep-alive" in options, has_body)


def _telling(whole: bytes, told: bytes) -> bytes:
    """An answer with `Connection: TOLD` after its first line."""
    return whole.replace(b"\r\n", b"\r\nConnection: " + told + b"\r\n", 1)
