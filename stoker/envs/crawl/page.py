"""From a page's HTML to what an agent can see of it: links, words, targets."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import numpy as np

from stoker.errors import ConfigError

try:
    from selectolax.lexbor import LexborHTMLParser
except ImportError as error:
    raise ConfigError(
        "Crawling needs selectolax, which is not installed: pip install 'stoker[http]'"
    ) from error

BUCKETS = 32
"""Words are counted in as many buckets, by their hash: no vocabulary is built in."""

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.~/-]*")
_WORD = re.compile(r"[a-z]{3,}")
_CONTEXT = 80  # letters of what stands beside a link
_TEXT = 2000  # letters of the page's own text
_SECTION = 3  # segments of an address that tell where on a host it lies
_PARSED = 4096  # pages kept as parsed: environments of a process meet the same ones


class Place(NamedTuple):
    """What an address says of where it lies."""

    section: str
    """Its first segments."""
    depth: int  # segments of its path
    has_query: bool
    path: str


class PageLink(NamedTuple):
    """A link that may be followed."""

    url: str
    """Absolute, without a fragment, its parameters in order."""
    words: np.ndarray  # float32 [BUCKETS], of its text, what stands beside it and its address
    place: Place
    in_navigation: bool


class ParsedPage(NamedTuple):
    """What there is to see on a page."""

    url: str
    """Its canonical address, where it gives one on its own host."""
    links: tuple[PageLink, ...]  # different ones, in the order of the page
    words: np.ndarray  # float32 [BUCKETS], of its title and text
    targets: tuple[str, ...]


@lru_cache(_PARSED)
def parse(html: str, url: str, target: str) -> ParsedPage:
    """Read a page found at `url`; `target` is a CSS selector of what is looked for.

    Links that are `nofollow`, lead to another host or are not http(s) are not among its links.
    Broken HTML is read as browsers do.
    """
    tree = LexborHTMLParser(html)
    found: dict[str, tuple[str, bool]] = {}  # by address, the words and whether it is navigation
    for anchor in tree.css("a[href]"):
        attributes = anchor.attributes
        there = join(url, attributes.get("href") or "")
        if there is None or there == url or "nofollow" in (attributes.get("rel") or ""):
            continue
        parent = anchor.parent
        in_navigation = parent is not None and parent.tag == "nav"
        beside = "" if parent is None or in_navigation else parent.text()[:_CONTEXT]
        found.setdefault(there, (f"{anchor.text()} {beside} {place_of(there).path}", in_navigation))
    title, body = tree.css_first("title"), tree.body
    text = body.text(separator=" ")[:_TEXT] if body is not None else ""
    own = f"{title.text() if title is not None else ''} {text}"
    *counts, words = _counted([words for words, _ in found.values()] + [own])
    links = (
        PageLink(there, count, place_of(there), in_navigation)
        for (there, (_, in_navigation)), count in zip(found.items(), counts, strict=True)
    )
    targets = (node.attributes.get("data-id") or node.text()[:64] for node in tree.css(target))
    return ParsedPage(_canonical(tree, url), tuple(links), words, tuple(targets))


@lru_cache(1 << 16)
def place_of(url: str) -> Place:
    parts = urlsplit(url)
    segments = [segment for segment in parts.path.split("/") if segment]
    return Place("/".join(segments[:_SECTION]), len(segments), bool(parts.query), parts.path)


def join(base: str, href: str) -> str | None:
    """Where `href` leads from `base`; None if not to http(s) on the same host."""
    is_plain = _PLAIN_PATH.fullmatch(href) and "/." not in href and "//" not in href
    if is_plain:  # most of them are, and need no more
        return "/".join(base.split("/", 3)[:3]) + href
    try:
        parts, here = urlsplit(urljoin(base, href.strip())), urlsplit(base)
        same = (parts.scheme, parts.netloc) == (here.scheme, here.netloc)
    except ValueError:
        return None
    if not same or parts.scheme not in ("http", "https"):
        return None
    query = urlencode(sorted(parse_qsl(parts.query, keep_blank_values=True)))
    return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", query, ""))


def _canonical(tree: LexborHTMLParser, url: str) -> str:
    given = tree.css_first('link[rel="canonical"]')
    stated = None if given is None else join(url, given.attributes.get("href") or "")
    return stated or url


def _counted(texts: list[str]) -> np.ndarray:
    """How often words of each bucket occur in each text, damped: float32 [texts, BUCKETS]."""
    cells = [
        row * BUCKETS + _bucket(word)
        for row, text in enumerate(texts)
        for word in _WORD.findall(text.lower())
    ]
    counts = np.bincount(np.array(cells, np.int64), minlength=len(texts) * BUCKETS)
    return np.log1p(counts, dtype=np.float32).reshape(len(texts), BUCKETS)


@lru_cache(1 << 16)
def _bucket(word: str) -> int:
    return zlib.crc32(word.encode()) % BUCKETS
