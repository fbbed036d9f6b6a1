"""Sites laid out and answers ready made, kept as far as memory allows."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from stoker.envs.crawl.connection import Reply, reply
from stoker.envs.crawl.links import canonical
from stoker.envs.crawl.site import Site, SiteSettings

_NODES = 1 << 19
"""Pages of all the sites laid out: 1,310 sites of 400 pages, about 230 MB."""
_BYTES = 256 * 10**6
"""Answers kept, all sites together: some 70,000."""
_BESIDES = 400
"""Bytes that an answer takes besides itself: its record, its key and its place."""


class Shelf:
    """The pages of any number of sites, as answers.

    Sites are laid out again, and answers made again, when they are asked for after they had to go:
    what was needed longest ago does, once the sites have more than `nodes` pages in all or the
    answers more than `most_bytes`. One site always stays.
    """

    def __init__(
        self, settings: SiteSettings, nodes: int = _NODES, most_bytes: int = _BYTES
    ) -> None:
        self._settings = settings
        self._most_sites = max(1, nodes // settings.pages)
        self._most_bytes = most_bytes
        self._sites: OrderedDict[int, Site] = OrderedDict()
        self._replies: OrderedDict[tuple[int, str, bool], Reply] = OrderedDict()
        self._bytes = 0

    @property
    def seeds(self) -> list[int]:
        """Of the sites laid out, the one needed longest ago first."""
        return list(self._sites)

    @property
    def bytes_kept(self) -> int:
        """What the answers take."""
        return self._bytes

    def page(self, seed: int, address: str, broken: bool = False) -> Reply | None:
        """The answer for a page, however its address is spelled; None where there is none."""
        key = (seed, canonical(address), broken)
        kept = self._replies.get(key)
        if kept is not None:
            self._replies.move_to_end(key)
            return kept
        page = self._site(seed).page(key[1], broken=broken)
        if page is None:
            return None
        made = reply(200, page.body, "text/html; charset=utf-8")
        self._replies[key] = made
        self._bytes += len(made.whole) + _BESIDES
        while self._bytes > self._most_bytes:
            _, gone = self._replies.popitem(last=False)
            self._bytes -= len(gone.whole) + _BESIDES
        return made

    def _site(self, seed: int) -> Site:
        site = self._sites.get(seed)
        if site is None:
            settings = replace(self._settings, seed=seed)
            site = self._sites[seed] = Site(settings, prefix=f"/s/{seed}", cached=0)
            if len(self._sites) > self._most_sites:
                self._sites.popitem(last=False)
        else:
            self._sites.move_to_end(seed)
        return site
