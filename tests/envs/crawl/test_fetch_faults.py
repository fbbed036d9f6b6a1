"""Servers that are slow, silent, broken or not there: a `FetchError` of the right kind, in time."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fetching import PATIENT, Run, fails, refused
from servers import (
    HOME,
    Handler,
    Server,
    Visitor,
    closed_port,
    redirect,
    reply,
    saying,
    silent,
    slow_body,
    slow_headers,
)

from stoker.envs.crawl.fetch import Fetcher


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
    assert 0.25 < time.monotonic() - begun < 10


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
            url = server.url().replace("http:", "https:")
            assert "connect_s (0.1 s)" in str(await refused(fetcher, url, "timeout"))
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
