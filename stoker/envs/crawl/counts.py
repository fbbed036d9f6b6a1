"""What a fetcher did, in exact numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stoker.envs.crawl.failure import Kind


@dataclass
class Counts:
    """`gets` is `pages` plus all `failures`, but for those cancelled or under way."""

    gets: int = 0
    """Calls of `get`."""

    pages: int = 0
    """Calls that returned a page."""

    failures: Counter[Kind] = field(default_factory=Counter)
    """Calls that raised, by kind."""

    requests: int = 0
    """Requests sent: what servers saw, but for those sent as the server hung up (`resent`)."""

    redirects: int = 0
    """Redirects followed."""

    retries: int = 0
    """Requests made again after a fault, after a pause."""

    resent: int = 0
    """Requests sent again at once because a kept connection turned out to be closed."""

    connections: int = 0
    """Connections opened."""

    body_bytes: int = 0
    """Bytes of bodies read, as they were sent."""

    unpacked_bytes: int = 0
    """Bytes of the bodies of pages, decompressed."""
