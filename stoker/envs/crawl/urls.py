"""A URL, read once and strictly, so that what is checked is what is asked."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from stoker.envs.crawl.allow import AllowList, canonical_host
from stoker.envs.crawl.failure import FetchError, shown

PORTS = {"http": 80, "https": 443}

_LONGEST = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NETLOC = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::[0-9]*)?")
_KEPT = "!$%&'()*+,-./:;=?@_~[]"
"""Characters of a path or a query that stay as they are; `%` because it is escaped already."""


class Target(NamedTuple):
    """Where a request goes. `url` is written anew from the parts that were checked."""

    url: str
    host: str
    port: int


def read_url(url: str, allowed: AllowList) -> Target:
    """The target of an absolute URL, or a `FetchError` if it may not be asked."""
    if len(url) > _LONGEST:
        raise _unreadable(url, f"it has {len(url)} characters, and {_LONGEST} are allowed")
    text = url.strip(" \t\r\n\f")
    if _CONTROL.search(text):
        raise _unreadable(url, "it has a control character in it")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise _unreadable(url, str(error)) from error
    if parts.scheme not in PORTS:
        raise FetchError(
            "scheme", url, f"the scheme is {shown(parts.scheme)!r}; only http and https are asked."
        )
    if "@" in parts.netloc:
        raise _unreadable(url, "it has a user name in it, which is never sent")
    host = _host(url, parts.netloc)
    port = PORTS[parts.scheme] if port is None else port
    if port == 0:
        raise _unreadable(url, "its port is 0")
    if not allowed.allows(host, port):
        raise FetchError(
            "refused-host",
            url,
            f"{host}, port {port}, is not on the allow-list. Add it to `allowed_hosts` if it is "
            "to be asked.",
        )
    where = f"[{host}]" if ":" in host else host
    if port != PORTS[parts.scheme]:
        where += f":{port}"
    query = f"?{_escaped(parts.query)}" if parts.query else ""
    return Target(f"{parts.scheme}://{where}{_escaped(parts.path) or '/'}{query}", host, port)


def follow(target: Target, location: str, allowed: AllowList) -> Target:
    """Where a redirect leads, checked like any other URL."""
    try:
        there = urljoin(target.url, location.strip(" \t\r\n\f"))
    except ValueError as error:
        raise _unreadable(location, str(error)) from error
    try:
        return read_url(there, allowed)
    except FetchError as error:
        sentence = f"{error.sentence} (A redirect from {shown(target.url)} led there.)"
        raise FetchError(error.kind, error.url, sentence) from error


def _host(url: str, netloc: str) -> str:
    """The canonical host of `host`, `host:port`, `[v6]` or `[v6]:port`."""
    found = _NETLOC.fullmatch(netloc)
    if found is None:
        raise _unreadable(url, "it has no host, or more than one")
    try:
        return canonical_host(found[1])
    except ValueError as error:
        raise _unreadable(url, str(error)) from error


def _escaped(text: str) -> str:
    return quote(text, safe=_KEPT, errors="surrogateescape")


def _unreadable(url: str, why: str) -> FetchError:
    return FetchError("url", url, f"{shown(why)}. Write it as http://host/path.")
