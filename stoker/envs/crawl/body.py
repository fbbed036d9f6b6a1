"""From the bytes of a body to text: decompressed up to a cap, decoded whatever comes."""

from __future__ import annotations

import codecs
import zlib
from typing import Protocol

CONTENT_ENCODINGS = "gzip, deflate"
"""What we say that we accept; other encodings are refused."""

_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS

_CHARSETS = frozenset(
    codecs.lookup(name).name
    for name in (
        *("ascii", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"),
        *(f"iso8859-{part}" for part in range(1, 17) if part != 12),
        *("cp866", "cp874", *(f"cp{page}" for page in range(1250, 1259))),
        *("koi8-r", "koi8-u", "mac-roman", "mac-cyrillic"),
        *("gb2312", "gbk", "gb18030", "big5", "big5hkscs"),
        *("shift_jis", "cp932", "euc_jp", "iso2022_jp", "euc_kr", "cp949"),
    )
)
"""Charsets of the web. Python knows others that are not for strangers to choose: decoding
`punycode` takes time that grows with the square of the length, and `unicode_escape` warns."""


class TooLargeError(Exception):
    """More came out than is allowed."""


class BrokenEncodingError(Exception):
    """The bytes are not what their content encoding says, or end too soon."""


class Unpacker(Protocol):
    """Takes a body piece by piece; keeps no more than a piece of it."""

    def feed(self, piece: bytes) -> bytes: ...

    def finish(self) -> None: ...


def unpacker(encoding: str, most: int) -> Unpacker | None:
    """For a Content-Encoding header, or None if it is not one of ours. `most` bytes come out."""
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return Plain()
    if kind in ("gzip", "x-gzip", "deflate"):
        return Inflater(kind != "deflate", most)
    return None


class Plain:
    """A body that is sent as it is."""

    def feed(self, piece: bytes) -> bytes:
        return piece

    def finish(self) -> None: ...


class Inflater:
    """gzip, in one part or several, or deflate, with the zlib header or without it."""

    def __init__(self, gzip: bool, most: int) -> None:
        self._gzip = gzip
        self._left = most
        self._stream: zlib._Decompress | None = None

    def feed(self, piece: bytes) -> bytes:
        out = bytearray()
        while piece:
            if self._stream is None or (self._gzip and self._stream.eof):
                self._stream = zlib.decompressobj(self._window(piece))
            elif self._stream.eof:
                raise BrokenEncodingError("there is more after the end of the compressed body")
            piece = self._inflate(self._stream, piece, out)
        return bytes(out)

    def finish(self) -> None:
        """The body ended here. No body at all is fine: redirects and the like have none."""
        if self._stream is not None and not self._stream.eof:
            raise BrokenEncodingError("the compressed body ends before its end")

    def _inflate(self, stream: zlib._Decompress, piece: bytes, out: bytearray) -> bytes:
        """Append what comes of `piece` to `out`; what is left belongs to the next part."""
        try:
            # One byte more than allowed is enough to know, and 0 would mean no limit.
            fresh = stream.decompress(piece, self._left + 1)
        except zlib.error as error:
            raise BrokenEncodingError(str(error)) from error
        if len(fresh) > self._left:
            raise TooLargeError
        self._left -= len(fresh)
        out += fresh
        return stream.unused_data if stream.eof else stream.unconsumed_tail

    def _window(self, piece: bytes) -> int:
        if self._gzip:
            return _GZIP
        # The low half of zlib's first byte is 8; without its header that would be padding of 1s.
        return _ZLIB if piece[0] & 0x0F == 8 else _BARE


def decode(body: bytes, charset: str | None) -> str:
    """Text by the charset declared if it is a known one, else UTF-8; never an error."""
    name = "utf-8"
    try:
        found = codecs.lookup((charset or name)[:40]).name
        name = found if found in _CHARSETS else name
    except (LookupError, ValueError):
        pass
    return body.decode(name, errors="replace").removeprefix("\ufeff")
