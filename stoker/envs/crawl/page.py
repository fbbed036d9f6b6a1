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

LINK_FEATURES = BUCKETS + 4
"""What is seen of a link: its words, that it is there, how deep it leads, whether its address has
parameters, and whether it is part of the navigation."""
DEEPEST = 8.0
"""Depths are seen as shares of this one."""

_PLAIN_PATH = re.compile(r"(/|(?:\.\./)*)((?:[\w~-]+[/.])*[\w~-]+/?)?", re.ASCII)
_PLAIN_QUERY = re.compile(r"[\w.~-]+=[\w.~-]*(?:&[\w.~-]+=[\w.~-]*)*", re.ASCII)
_PLAIN_NAME = re.compile(r"[\w~-]+(?:\.[\w~-]+)*", re.ASCII)
"""Most addresses have nothing to escape, and dots nowhere but in front or within a name."""
_LETTERS_ALONE = bytes(
    byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz\n" else 32 for byte in range(256)
)
_SHORTEST_WORD = 3
_CONTEXT = 80  # letters of what stands beside a link
_TEXT = 2000  # letters of the page's own text
_SECTION = 3  # segments of an address that tell where on a host it lies
_PARSED = 4096  # pages kept as parsed: environments of a process meet the same ones
_LARGEST_KEPT = 1 << 14  # letters of such a page, so that all of them take 100 MB or so


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
    place: Place
    in_navigation: bool


class ParsedPage(NamedTuple):
    """What there is to see on a page."""

    url: str
    """Its canonical address, where it gives one on its own host."""
    links: tuple[PageLink, ...]  # different ones, in the order of the page, the navigation last
    features: np.ndarray  # float32 [links, LINK_FEATURES]; the words are those of a link's text, of
    # what stands beside it and of its address
    words: np.ndarray  # float32 [BUCKETS], of its title and text
    targets: tuple[str, ...]


def parse(html: str, url: str, target: str) -> ParsedPage:
    """Read a page found at `url`; `target` is a CSS selector of what is looked for.

    Links that are `nofollow`, lead to another host or are not http(s) are not among its links.
    Broken HTML is read as browsers do.
    """
    return (_parsed if len(html) <= _LARGEST_KEPT else _parsed.__wrapped__)(html, url, target)


@lru_cache(_PARSED)
def _parsed(html: str, url: str, target: str) -> ParsedPage:
    tree = LexborHTMLParser(html)
    links: dict[str, PageLink] = {}
    texts: list[str] = []  # by link, whose words count
    for anchor in tree.css("a[href]"):
        attributes = anchor.attributes
        there = join(url, attributes.get("href") or "")
        if there is None or there == url or there in links:
            continue
        if "nofollow" in (attributes.get("rel") or ""):
            continue
        parent, place = anchor.parent, place_of(there)
        in_navigation = parent is not None and parent.tag == "nav"
        beside = "" if parent is None or in_navigation else parent.text()[:_CONTEXT]
        links[there] = PageLink(there, place, in_navigation)
        texts.append(f"{anchor.text()} {beside} {place.path}")
    title, body = tree.css_first("title"), tree.body
    text = "" if body is None else body.text(separator=" ")[:_TEXT]
    counts = _counted([*texts, f"{'' if title is None else title.text()} {text}"])
    targets = (node.attributes.get("data-id") or node.text()[:64] for node in tree.css(target))
    found = tuple(links.values())
    order = sorted(range(len(found)), key=lambda i: found[i].in_navigation)
    return ParsedPage(
        _canonical(tree, url),
        tuple(found[i] for i in order),
        _features(found, counts)[order],
        counts[-1],
        tuple(targets),
    )


def _features(links: tuple[PageLink, ...], counts: np.ndarray) -> np.ndarray:
    seen = np.empty((len(links), LINK_FEATURES), np.float32)
    seen[:, :BUCKETS] = counts[: len(links)]
    if links:
        seen[:, BUCKETS:] = [
            (1.0, min(place.depth / DEEPEST, 1.0), place.has_query, in_navigation)
            for _, place, in_navigation in links
        ]
    return seen


def place_of(url: str) -> Place:
    """Of an address as `join` gives it."""
    before, mark, _ = url.partition("?")
    _, _, _, *segments = f"{before}//".split("/")
    named = [segment for segment in segments if segment]
    return Place("/".join(named[:_SECTION]), len(named), bool(mark), "/" + "/".join(segments[:-2]))


def join(base: str, href: str) -> str | None:
    """Where `href` leads from `base`; None if not to http(s) on the same host."""
    return _joined_plainly(base, href) or _joined(base, href)


def _joined_plainly(base: str, href: str) -> str | None:
    """What `_joined` says, for addresses that are simple; None for others."""
    path, mark, query = href.partition("#")[0].partition("?")
    found = _PLAIN_PATH.fullmatch(path)
    origin, folders = _folders(base)
    if not path or found is None or folders is None:
        return None
    if mark:
        if not _PLAIN_QUERY.fullmatch(query):
            return None
        pairs = sorted(pair.split("=") for pair in query.split("&"))
        mark += "&".join("=".join(pair) for pair in pairs)
    up, name = found[1], found[2] or ""
    if up == "/":
        return f"{origin}/{name}{mark}"
    kept = folders[: max(0, len(folders) - len(up) // 3)]
    return "/".join((origin, *kept, name)) + mark


@lru_cache
def _folders(base: str) -> tuple[str, tuple[str, ...] | None]:
    """Scheme and host of a page's address, and the folders it lies in, if their names are plain."""
    *origin, rest = f"{base.partition('?')[0]}/".split("/", 3)
    folders = tuple(rest.split("/")[:-2])
    return "/".join(origin), folders if all(_PLAIN_NAME.fullmatch(x) for x in folders) else None


def _joined(base: str, href: str) -> str | None:
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
    joined = "\n".join(text.replace("\n", " ") for text in texts).lower()
    lines = joined.encode("ascii", "replace").translate(_LETTERS_ALONE).split(b"\n")
    cells = [
        row * BUCKETS + _bucket(word)
        for row, line in enumerate(lines)
        for word in line.split()
        if len(word) >= _SHORTEST_WORD
    ]
    counts = np.bincount(np.array(cells, np.int64), minlength=len(texts) * BUCKETS)
    return np.log1p(counts, dtype=np.float32).reshape(len(texts), BUCKETS)


@lru_cache(1 << 16)
def _bucket(word: bytes) -> int:
    return zlib.crc32(word) % BUCKETS
