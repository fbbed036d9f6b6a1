"""One request and its answer over aiohttp, which is imported here and nowhere else.

aiohttp would follow redirects, keep cookies, decompress without limit, and send a request twice
by itself; all of that is switched off. A name is looked up by our resolver, and the addresses it
lets through are the ones aiohttp dials: there is no second lookup between check and connection.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from weakref import WeakSet

from stoker.envs.crawl.allow import AllowList
from stoker.envs.crawl.body import (
    CONTENT_ENCODINGS,
    BrokenEncodingError,
    TooLargeError,
    unpacker,
)
from stoker.envs.crawl.counts import Counts
from stoker.envs.crawl.failure import FetchError, shown
from stoker.envs.crawl.limits import Limits
from stoker.envs.crawl.urls import Target
from stoker.errors import ConfigError

try:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from aiohttp.connector import Connection
    from yarl import URL
except ImportError as error:
    raise ConfigError(
        f"aiohttp, which fetches pages, cannot be imported ({error}). Install it: "
        "pip install 'stoker[http]'."
    ) from error

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks up a host and port: the addresses, as text. `OSError` if there are none."""

REDIRECTS = frozenset((301, 302, 303, 307, 308))
PASSING = frozenset((429, 502, 503, 504))
"""A server that is busy, restarting or behind a proxy that cannot reach it."""

_HEADERS = {"Accept-Encoding": CONTENT_ENCODINGS, "User-Agent": "stoker"}


class Answer(NamedTuple):
    """What a server said. The body is read for pages alone, not for redirects."""

    status: int
    content_type: str
    charset: str | None
    location: str | None
    body: bytes


class _NotAllowedError(Exception):
    """A name led to no address that may be dialled."""


class _HungUpError(Exception):
    """The connection broke before an answer began. Not aiohttp's own, lest it sends again."""


class _CheckedResolver(AbstractResolver):
    """Hands on only the addresses that may be dialled."""

    def __init__(self, resolve: Resolve, allowed: AllowList, patience: float) -> None:
        self._resolve, self._allowed, self._patience = resolve, allowed, patience

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        async with asyncio.timeout(self._patience):
            found = await self._resolve(host, port)
        kept = [address for address in found if self._allowed.allows_address(address, port)]
        if not kept:
            raise _NotAllowedError(f"{host} leads to {', '.join(found) or 'no address'}")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in kept
        ]

    async def close(self) -> None: ...


@dataclass
class _Asking:
    """A request on its way to a connection."""

    counts: Counts
    on_kept_connection: bool = False


_ASKING: ContextVar[_Asking] = ContextVar("_ASKING")
"""Of the running task. aiohttp's own way to follow a request costs a quarter of sending one."""


class _CountingConnector(aiohttp.TCPConnector):
    """Counts connections and what is sent on them, and tells which were used before."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._used: WeakSet[asyncio.BaseProtocol] = WeakSet()

    async def connect(self, *given: Any, **more: Any) -> Connection:
        connection = await super().connect(*given, **more)
        asking, protocol = _ASKING.get(), connection.protocol
        assert protocol is not None
        asking.on_kept_connection = protocol in self._used
        asking.counts.requests += 1
        if not asking.on_kept_connection:
            asking.counts.connections += 1
            self._used.add(protocol)
        return connection


class Wire:
    """The connections of one event loop; made on it, and closed on it."""

    def __init__(self, limits: Limits, allowed: AllowList, resolve: Resolve | None = None) -> None:
        self._limits = limits
        resolver = _CheckedResolver(resolve or _look_up, allowed, limits.connect_s)
        self._session = aiohttp.ClientSession(
            connector=_CountingConnector(resolver=resolver, limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_s, sock_read=limits.read_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            auto_decompress=False,
            trust_env=False,
            middlewares=(_hang_up_plainly,),
        )

    async def get(self, target: Target, counts: Counts) -> Answer:
        """Ask once. Raises `FetchError`; one that is `transient` may be tried again."""
        with _told_as_fetch_errors(target, self._limits):
            return await self._ask(target, counts)

    async def close(self) -> None:
        await self._session.close()

    async def _ask(self, target: Target, counts: Counts) -> Answer:
        url = URL(target.url, encoded=True)
        if (url.raw_host, url.port) != (target.host, target.port):
            raise FetchError("url", target.url, f"aiohttp reads its host as {url.raw_host!r}.")
        asking = _Asking(counts)
        _ASKING.set(asking)
        try:
            response = await self._session.get(url, allow_redirects=False)
        except _HungUpError:
            # The server may close a kept connection just as we use it; that is nobody's fault.
            if not asking.on_kept_connection:
                raise
            counts.resent += 1
            response = await self._session.get(url, allow_redirects=False)
        try:
            answer = await self._read(response, target.url, counts)
        except BaseException:
            response.close()
            raise
        response.release()
        return answer

    async def _read(self, response: aiohttp.ClientResponse, url: str, counts: Counts) -> Answer:
        status, headers = response.status, response.headers
        if status in PASSING or status >= 500:
            raise FetchError(
                "status",
                url,
                f"the server answered {status} {shown(response.reason or '')}".rstrip() + ".",
                transient=status in PASSING,
                retry_after_s=_seconds(headers.get("Retry-After", "")),
            )
        if status < 200:
            raise FetchError("protocol", url, f"the server answered {status}, out of place.")
        if status in REDIRECTS:
            location = headers.get("Location", "")
            return Answer(status, "", None, location, b"")
        body = await self._body(response, url, counts)
        content_type = response.content_type if "Content-Type" in headers else ""
        return Answer(status, content_type, response.charset, None, body)

    async def _body(self, response: aiohttp.ClientResponse, url: str, counts: Counts) -> bytes:
        most, most_unpacked = self._limits.max_body_bytes, self._limits.max_decompressed_bytes
        encoding = ",".join(response.headers.getall("Content-Encoding", ()))
        unpack = unpacker(encoding, most_unpacked)
        if unpack is None:
            raise FetchError(
                "encoding",
                url,
                f"the body comes as {shown(encoding)!r}; only {CONTENT_ENCODINGS} was asked for.",
            )
        if (response.content_length or 0) > most:
            raise _too_large(url, f"{response.content_length} bytes", "max_body_bytes", most)
        received, body = 0, bytearray()
        try:
            async for piece in response.content.iter_any():
                received += len(piece)
                counts.body_bytes += len(piece)
                if received > most:
                    raise _too_large(url, f"{received} bytes or more", "max_body_bytes", most)
                body += unpack.feed(piece)
            unpack.finish()
        except TooLargeError:
            found = f"more than {most_unpacked} bytes once decompressed"
            raise _too_large(url, found, "max_decompressed_bytes", most_unpacked) from None
        except BrokenEncodingError as error:
            raise FetchError(
                "encoding", url, f"the body is not the {encoding} it says it is ({error})."
            ) from error
        counts.unpacked_bytes += len(body)
        return bytes(body)


def _too_large(url: str, found: str, limit: str, most: int) -> FetchError:
    return FetchError("too-large", url, f"the body has {found}; {limit} is {most}.")


async def _look_up(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _hang_up_plainly(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _HungUpError(str(error)) from error


@contextmanager
def _told_as_fetch_errors(target: Target, limits: Limits) -> Iterator[None]:
    """What can go wrong below, in our words. The order matters: these are families."""
    url = target.url
    try:
        yield
    except _NotAllowedError as error:
        raise FetchError(
            "private-address",
            url,
            f"{error}, none of which is public or on the allow-list. Add the address itself to "
            "`allowed_hosts` if it is to be dialled.",
        ) from error
    except aiohttp.ConnectionTimeoutError as error:
        sentence = f"no connection to {target.host}, port {target.port}, within connect_s "
        sentence += f"({limits.connect_s:g} s)."
        raise FetchError("timeout", url, sentence, transient=True) from error
    except aiohttp.ServerTimeoutError as error:
        sentence = f"the server sent nothing for read_s ({limits.read_s:g} s)."
        raise FetchError("timeout", url, sentence) from error
    except aiohttp.ClientSSLError as error:
        raise FetchError("tls", url, f"no secure connection: {shown(str(error))}.") from error
    except aiohttp.InvalidURL as error:
        raise FetchError("url", url, f"aiohttp cannot read it: {shown(str(error))}.") from error
    except aiohttp.ClientConnectorError as error:
        why = shown(str(error.os_error))
        sentence = f"{target.host}, port {target.port}, could not be reached: {why}."
        raise FetchError("connection", url, sentence, transient=True) from error
    except (_HungUpError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        sentence = f"the connection broke: {shown(str(error))}."
        raise FetchError("connection", url, sentence, transient=True) from error
    except aiohttp.ClientError as error:
        sentence = f"the answer is not HTTP as it should be: {shown(str(error))}."
        raise FetchError("protocol", url, sentence) from error


def _seconds(retry_after: str) -> float | None:
    """What a Retry-After header asks for: seconds, or a date."""
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
