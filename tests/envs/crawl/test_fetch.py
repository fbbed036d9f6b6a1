"""Servers that answer slowly, badly, too much or not at all: a page or a `FetchError`, in time."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import random
import shutil
import ssl
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers import (
    HOME,
    Handler,
    Server,
    ServerInThread,
    Visitor,
    closed_port,
    redirect,
    reply,
    saying,
)

from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.fetch import BlockingFetcher, Fetcher
from stoker.envs.crawl.limits import Limits

Run = Callable[[Any], None]

PATIENT = Limits(
    connect_s=10,
    read_s=10,
    total_s=20,
    max_body_bytes=100_000,
    max_decompressed_bytes=200_000,
    retries=0,
    retry_base_s=0.001,
    breaker_failures=100,
)
"""Limits that no healthy answer runs into, however busy the machine is."""


async def refused(fetcher: Fetcher, url: str, kind: str) -> FetchError:
    """The error that a fetch ends with; any kind but `kind` is wrong."""
    with pytest.raises(FetchError) as caught:
        await fetcher.get(url)
    assert caught.value.kind == kind, str(caught.value)
    return caught.value


def fails(run: Run, handler: Handler, kind: str, limits: Limits = PATIENT) -> FetchError:
    """What a single fetch from such a server ends with."""
    errors = []

    async def test() -> None:
        async with Server(handler) as server, Fetcher(limits) as fetcher:
            errors.append(await refused(fetcher, server.url(), kind))
            assert fetcher.counts.failures == {kind: 1}
            assert (fetcher.counts.gets, fetcher.counts.pages) == (1, 0)
            assert fetcher.counts.requests == len(server.paths)

    run(test())
    return errors[0]


def reads(run: Run, answer: bytes | Handler, text: str, limits: Limits = PATIENT) -> None:
    async def test() -> None:
        handler = saying(answer) if isinstance(answer, bytes) else answer
        async with Server(handler) as server, Fetcher(limits) as fetcher:
            assert (await fetcher.get(server.url())).text == text

    run(test())


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


async def silent(visitor: Visitor) -> None:
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


async def stops_halfway(visitor: Visitor) -> None:
    await visitor.send(reply(b"half", sized=False, content_length="8"))
    await asyncio.sleep(60)


@pytest.mark.parametrize("handler", [silent, stops_halfway])
def test_a_server_that_goes_silent(run: Run, handler: Handler) -> None:
    error = fails(run, handler, "timeout", replace(PATIENT, read_s=0.1, retries=3))
    assert "read_s (0.1 s)" in str(error)


@pytest.mark.parametrize("handler", [slow_headers, slow_body])
def test_a_server_that_drips(run: Run, handler: Handler) -> None:
    """Never silent for long, so that only the total ends it."""
    begun = time.monotonic()
    error = fails(run, handler, "timeout", replace(PATIENT, total_s=0.3, retries=3))
    assert "total_s (0.3 s)" in str(error)
    assert 0.3 <= time.monotonic() - begun < 10


def test_the_total_is_over_redirects_and_retries_as_well(run: Run) -> None:
    async def onwards(visitor: Visitor) -> None:
        await asyncio.sleep(0.1)
        await visitor.send(redirect(f"/{int(visitor.path[1:] or 0) + 1}"))

    fails(run, onwards, "timeout", replace(PATIENT, total_s=0.35, max_redirects=100))


def test_no_pause_is_begun_that_would_outlast_the_total(run: Run) -> None:
    async def test() -> None:
        busy = saying(reply(b"", "503 Busy", retry_after="60"))
        limits = replace(PATIENT, retries=5, retry_cap_s=60, total_s=15)
        async with Server(busy) as server, Fetcher(limits) as fetcher:
            begun = time.monotonic()
            await refused(fetcher, server.url(), "status")
            assert time.monotonic() - begun < 10
            assert (len(server.paths), fetcher.counts.retries) == (1, 0)

    run(test())


def test_a_connection_that_is_never_accepted_times_out_and_is_tried_again(run: Run) -> None:
    """A resolver that does not come back stands for any step before there is a connection."""

    async def test() -> None:
        asked = []

        async def never(host: str, port: int) -> list[str]:
            asked.append(host)
            await asyncio.sleep(60)
            return []

        limits = replace(PATIENT, allowed_hosts=("site.test",), connect_s=0.05, retries=2)
        async with Fetcher(limits, resolve=never) as fetcher:
            error = await refused(fetcher, "http://site.test/", "timeout")
            assert "connect_s (0.05 s)" in str(error)
            assert len(asked) == 3
            assert (fetcher.counts.retries, fetcher.counts.requests) == (2, 0)

    run(test())


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


async def resets(visitor: Visitor) -> None:
    visitor.reset()


async def hangs_up(visitor: Visitor) -> None:
    visitor.hang_up()


async def breaks_off(visitor: Visitor) -> None:
    await visitor.send(reply(b"half", sized=False, content_length="8"))
    visitor.hang_up()


async def breaks_off_in_a_chunk(visitor: Visitor) -> None:
    await visitor.send(reply(b"64\r\nhalf", sized=False, transfer_encoding="chunked"))
    visitor.hang_up()


@pytest.mark.parametrize("handler", [resets, hangs_up, breaks_off, breaks_off_in_a_chunk])
def test_a_connection_that_breaks_is_asked_again_by_us_alone(run: Run, handler: Handler) -> None:
    """The library would ask twice on its own; every request is one that was decided on here."""

    async def test() -> None:
        async with Server(handler) as server, Fetcher(replace(PATIENT, retries=2)) as fetcher:
            await refused(fetcher, server.url(), "connection")
            assert len(server.paths) == fetcher.counts.requests == 3
            assert (fetcher.counts.retries, fetcher.counts.resent) == (2, 0)
            assert fetcher.counts.connections == server.connections == 3

    run(test())


def test_nobody_listens(run: Run) -> None:
    async def test() -> None:
        async with Fetcher(replace(PATIENT, retries=2)) as fetcher:
            url = f"http://{HOME}:{closed_port()}/"
            error = await refused(fetcher, url, "connection")
            assert url in str(error)
            assert (fetcher.counts.requests, fetcher.counts.retries) == (0, 2)

    run(test())


async def endless_headers(visitor: Visitor) -> None:
    await visitor.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await visitor.send(b"X-More: and more\r\n" * 1000)


@pytest.mark.parametrize(
    "handler",
    [
        saying(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\nhello"),
        saying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nhello"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello"),
        saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\nhello"),
        saying(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tea\r\nConnection: upgrade\r\n\r\n"),
        endless_headers,
    ],
    ids=["header", "ssh", "length", "two-lengths", "long-header", "upgrade", "endless-headers"],
)
def test_an_answer_that_is_not_http(run: Run, handler: Handler) -> None:
    fails(run, handler, "protocol", replace(PATIENT, retries=3))


def test_a_plain_server_where_a_secure_one_is_expected(run: Run) -> None:
    async def test() -> None:
        greeted = []

        async def greet(asks: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
            greeted.append(1)
            out.write(reply(b"", "400 Bad Request"))
            out.close()

        async with Fetcher(replace(PATIENT, retries=2)) as fetcher:
            server = await asyncio.start_server(greet, HOME, 0)
            port = server.sockets[0].getsockname()[1]
            await refused(fetcher, f"https://{HOME}:{port}/", "tls")
            assert (fetcher.counts.requests, fetcher.counts.retries) == (0, 0)
            assert len(greeted) == 1
            server.close()

    run(test())


def test_a_secure_connection_that_is_never_agreed_on(run: Run) -> None:
    async def test() -> None:
        async with Server() as server, Fetcher(replace(PATIENT, connect_s=0.1)) as fetcher:
            await refused(fetcher, server.url().replace("http:", "https:"), "timeout")
            assert fetcher.counts.requests == len(server.paths) == 0

    run(test())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_that_nobody_vouches_for(run: Run, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {key}"
    words += f" -out {certificate} -addext subjectAltName=IP:{HOME}"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate, key)

    async def test() -> None:
        async with Server(secure=secure) as server, Fetcher(replace(PATIENT, retries=2)) as fetcher:
            error = await refused(fetcher, server.url().replace("http:", "https:"), "tls")
            assert "certificate verify failed" in str(error)
            assert (fetcher.counts.requests, fetcher.counts.retries) == (0, 0)
            assert server.paths == []

    run(test())


async def gigabyte(visitor: Visitor) -> None:
    await visitor.send(reply(b"", sized=False, connection="close"))
    for _ in range(1024):
        await visitor.send(b"." * (1 << 20))
    visitor.hang_up()


async def gigabyte_in_chunks(visitor: Visitor) -> None:
    await visitor.send(reply(b"", sized=False, transfer_encoding="chunked"))
    for _ in range(1024):
        await visitor.send(b"100000\r\n" + b"." * (1 << 20) + b"\r\n")
    await visitor.send(b"0\r\n\r\n")


@pytest.mark.parametrize("handler", [gigabyte, gigabyte_in_chunks])
def test_a_body_without_end_is_read_up_to_the_cap(run: Run, handler: Handler) -> None:
    async def test() -> None:
        async with Server(handler) as server, Fetcher(PATIENT) as fetcher:
            await fetcher_is_warm(fetcher, server)
            tracemalloc.start()
            try:
                await refused(fetcher, server.url(), "too-large")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            cap = PATIENT.max_body_bytes
            assert cap < fetcher.counts.body_bytes < cap + (1 << 20)
            assert server.bytes_sent < 64 << 20
            assert peak < 32 << 20

    async def fetcher_is_warm(fetcher: Fetcher, server: Server) -> None:
        """What aiohttp imports late is not to be counted as memory for the body."""
        await refused(fetcher, server.url(), "too-large")
        fetcher.counts.body_bytes = server.bytes_sent = 0

    run(test())


def test_a_length_over_the_cap_is_refused_unread(run: Run) -> None:
    async def test() -> None:
        async def announces(visitor: Visitor) -> None:
            await visitor.send(reply(b"", sized=False, content_length=str(1 << 40)))
            await asyncio.sleep(60)

        async with Server(announces) as server, Fetcher(PATIENT) as fetcher:
            error = await refused(fetcher, server.url(), "too-large")
            assert "max_body_bytes is 100000" in str(error)
            assert fetcher.counts.body_bytes == 0

    run(test())


@pytest.mark.parametrize("over", [0, 1])
def test_the_cap_is_exact(run: Run, over: int) -> None:
    body = b"." * (PATIENT.max_body_bytes + over)
    answer = reply(body, sized=False, connection="close")

    async def whole(visitor: Visitor) -> None:
        await visitor.send(answer)
        visitor.hang_up()

    if over:
        fails(run, whole, "too-large")
    else:
        reads(run, whole, body.decode())


PACKED = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP ": gzip.compress,
    "deflate": zlib.compress,
}


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("encoding", PACKED)
def test_a_compressed_body(run: Run, encoding: str) -> None:
    reads(run, reply(PACKED[encoding](b"abc" * 1000), content_encoding=encoding), "abc" * 1000)


def test_a_compressed_body_of_other_makes(run: Run) -> None:
    two_parts = gzip.compress(b"one ") + gzip.compress(b"two")
    reads(run, reply(two_parts, content_encoding="gzip"), "one two")
    reads(run, reply(bare_deflate(b"bare"), content_encoding="deflate"), "bare")
    reads(run, reply(b"", content_encoding="gzip"), "")
    reads(run, reply(b"plain", content_encoding="identity"), "plain")


def test_a_compressed_body_byte_by_byte(run: Run) -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two")

    async def drips(visitor: Visitor) -> None:
        await visitor.send(
            reply(packed[:1], sized=False, content_length=str(len(packed)), content_encoding="gzip")
        )
        for byte in packed[1:]:
            await visitor.send(bytes([byte]))

    reads(run, drips, "one two")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_a_bomb_is_unpacked_up_to_the_cap(run: Run, pack: Callable[[bytes], bytes]) -> None:
    """A thousand to one: 64 MB in 64 kB."""
    bomb = pack(bytes(64 << 20))
    assert len(bomb) < PATIENT.max_body_bytes
    name = "gzip" if pack is gzip.compress else "deflate"

    async def test() -> None:
        handler = saying(reply(bomb, content_encoding=name))
        async with Server(handler) as server, Fetcher(PATIENT) as fetcher:
            await refused(fetcher, server.url(), "too-large")
            tracemalloc.start()
            try:
                error = await refused(fetcher, server.url(), "too-large")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert "max_decompressed_bytes is 200000" in str(error)
            assert peak < 8 << 20
            assert fetcher.counts.unpacked_bytes == 0

    run(test())


@pytest.mark.parametrize("over", [0, 1])
def test_the_cap_on_what_is_unpacked_is_exact(run: Run, over: int) -> None:
    body = b"." * (PATIENT.max_decompressed_bytes + over)
    answer = reply(gzip.compress(body), content_encoding="gzip")
    if over:
        fails(run, saying(answer), "too-large")
    else:
        reads(run, answer, body.decode())


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"not gzip at all", "gzip"),
        (gzip.compress(b"abc" * 1000)[:-9], "gzip"),
        (gzip.compress(b"abc" * 1000)[:-8] + b"\x00" * 8, "gzip"),
        (gzip.compress(b"abc") + b"and more", "gzip"),
        (zlib.compress(b"abc") + b"and more", "deflate"),
        (b"abc", "br"),
        (gzip.compress(gzip.compress(b"abc")), "gzip, gzip"),
    ],
    ids=["none", "short", "checksum", "more", "more-deflate", "brotli", "twice"],
)
def test_a_broken_content_encoding(run: Run, body: bytes, encoding: str) -> None:
    fails(run, saying(reply(body, content_encoding=encoding)), "encoding")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("Grüße".encode("latin-1"), "text/html; charset=ISO-8859-1", "Grüße"),
        ("Grüße".encode("latin-1"), 'text/html; charset="iso-8859-1"', "Grüße"),
        ("Grüße".encode("latin-1"), "text/html; charset=utf-8", "Gr\ufffd\ufffde"),
        ("Grüße".encode(), "text/html; charset=martian", "Grüße"),
        ("Grüße".encode(), "text/html; charset=\x00", "Grüße"),
        ("Grüße".encode(), "text/html; charset=rot13", "Grüße"),
        ("Grüße".encode(), "text/html; charset=" + "x" * 1000, "Grüße"),
        ("Grüße".encode(), "nonsense", "Grüße"),
        ("\ufeffGrüße".encode(), "text/html", "Grüße"),
        ("привет".encode("koi8-r"), "text/html; charset=KOI8-R", "привет"),
        ("日本".encode("shift_jis"), "text/html; charset=Shift_JIS", "日本"),
        ("日本".encode("utf-16"), "text/html; charset=utf-16", "日本"),
        (b"a\xff", "text/html; charset=ascii", "a\ufffd"),
        (b"a-b", "text/html; charset=punycode", "a-b"),
        (b"a\\x41\\q", "text/html; charset=unicode_escape", "a\\x41\\q"),
    ],
)
def test_the_charset_is_no_error(run: Run, body: bytes, content_type: str, text: str) -> None:
    answer = reply(body, content_type=content_type)
    if "\x00" in content_type:
        fails(run, saying(answer), "protocol")
    else:
        reads(run, answer, text)


async def without_length(visitor: Visitor) -> None:
    await visitor.send(reply(b"until ", sized=False, connection="close"))
    await visitor.send(b"the end")
    visitor.hang_up()


async def old_protocol(visitor: Visitor) -> None:
    await visitor.send(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
    visitor.hang_up()


async def in_chunks(visitor: Visitor) -> None:
    await visitor.send(reply(b"6\r\nuntil \r\n", sized=False, transfer_encoding="chunked"))
    await visitor.send(b"7\r\nthe end\r\n0\r\n\r\n")


@pytest.mark.parametrize("handler", [without_length, old_protocol, in_chunks])
def test_a_body_of_unknown_length(run: Run, handler: Handler) -> None:
    reads(run, handler, "until the end")


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


def test_a_closed_fetcher_says_so(run: Run) -> None:
    async def test() -> None:
        fetcher = Fetcher(PATIENT)
        await fetcher.close()
        await fetcher.close()
        with pytest.raises(RuntimeError, match="closed"):
            await fetcher.get("http://127.0.0.1/")

    run(test())


def test_the_blocking_face_does_the_same() -> None:
    fault = reply(b"", "503 Busy")
    with (
        ServerInThread(saying(fault, reply(b"back"))) as server,
        BlockingFetcher(replace(PATIENT, retries=1)) as fetcher,
    ):
        page = fetcher.get(server.url("/a"))
        assert (page.text, page.attempts) == ("back", 2)
        with pytest.raises(FetchError, match="allow-list") as caught:
            fetcher.get("http://example.com/")
        assert caught.value.kind == "refused-host"
        assert fetcher.get(server.url("/b")).text == "back"
        assert fetcher.counts.requests == len(server.paths) == 3
        assert fetcher.counts.connections == server.connections == 1
        assert fetcher.counts.failures == {"refused-host": 1}
    fetcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        fetcher.get(server.url())


def test_the_blocking_face_notices_what_was_closed_while_it_slept() -> None:
    async def once(visitor: Visitor) -> None:
        await visitor.send(reply())
        visitor.hang_up()

    with ServerInThread(once) as server, BlockingFetcher(PATIENT) as fetcher:
        for _ in range(3):
            fetcher.get(server.url())
            time.sleep(0.1)
        assert fetcher.counts.requests == len(server.paths) == 3
        assert fetcher.counts.resent == 0


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
