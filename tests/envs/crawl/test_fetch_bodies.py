"""Bodies: too large, packed to burst, broken, in strange charsets, of unknown length."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from fetching import PATIENT, Run, fails, reads, refused
from servers import Handler, Server, Visitor, reply, saying

from stoker.envs.crawl.fetch import Fetcher


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


def test_the_cap_is_on_all_parts_together(run: Run) -> None:
    part = gzip.compress(b"." * (PATIENT.max_decompressed_bytes // 2 + 1))
    fails(run, saying(reply(part + part, content_encoding="gzip")), "too-large")


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
