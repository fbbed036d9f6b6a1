"""A synthetic web site that follows from its settings: same settings, same bytes.

Nothing here reads a clock, a file or a socket; `serve.py` puts sites on the network.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Literal, NamedTuple

from stoker.envs.crawl.draws import Draws, number_of
from stoker.envs.crawl.layout import SiteSettings, lay_out
from stoker.envs.crawl.links import Link, Linker, LinkKind, canonical
from stoker.envs.crawl.render import broken as broken_html
from stoker.envs.crawl.render import render
from stoker.envs.crawl.traps import Trap, find_trap

__all__ = ["Link", "LinkKind", "PageContent", "PageKind", "Site", "SiteSettings", "canonical"]

PageKind = Literal["page", "dead-end", "trap"]


class PageContent(NamedTuple):
    """A page as a client gets it, and what a client cannot know."""

    path: str
    """Its canonical path and query, without the site's prefix."""
    html: str
    kind: PageKind
    is_target: bool
    target_id: str | None
    """What its `<article class="target">` has as `data-id`."""
    links: tuple[Link, ...]

    @property
    def body(self) -> bytes:
        """The HTML as it is sent; a broken page holds bytes that are not UTF-8."""
        return self.html.encode("utf-8", "surrogateescape")


class Site:
    """A site: sections with trees of pages, links across, targets, dead ends and traps.

    `prefix` is where the site is mounted, such as `/s/7`; it stands in the links that are written
    as absolute paths. Every method takes and returns paths without it. The last `cached` pages
    asked for are kept as rendered.
    """

    home = "/"
    """The path of the home page."""

    def __init__(
        self, settings: SiteSettings | None = None, *, prefix: str = "", cached: int = 1024
    ) -> None:
        self.settings = settings or SiteSettings()
        self.prefix = prefix
        self._nodes = lay_out(self.settings)
        self._index = {node.path: index for index, node in enumerate(self._nodes)}
        self._linker = Linker(self.settings, self._nodes, prefix)
        self._rendered: OrderedDict[str, PageContent] = OrderedDict()
        self._cached = cached

    def __len__(self) -> int:
        """The number of real pages."""
        return len(self._nodes)

    @cached_property
    def targets(self) -> dict[str, str]:
        """By path, the target that lies there."""
        return {node.path: node.target_id for node in self._nodes if node.target_id}

    def graph(self) -> dict[str, tuple[str, ...]]:
        """By real page, the real pages it links to; the navigation is among them."""
        paths = [node.path for node in self._nodes]
        everywhere = paths[: self.settings.sections + 1]
        return {
            path: ()
            if self._nodes[index].dead_end
            else tuple(
                dict.fromkeys(
                    everywhere + [paths[other] for other in self._linker.neighbours(index)]
                )
            )
            for index, path in enumerate(paths)
        }

    def depth(self, path: str) -> int | None:
        """How many levels a real page lies below the home page; None for any other."""
        index = self._index.get(path)
        return None if index is None else self._nodes[index].depth

    def page(self, path_and_query: str, *, broken: bool = False) -> PageContent | None:
        """The page at an address of this site, however it is spelled; None where there is none."""
        address = canonical(path_and_query)
        content = self._rendered.get(address)
        if content is None:
            content = self._render(address)
            if content is None:
                return None
            self._rendered[address] = content
            if len(self._rendered) > self._cached:
                self._rendered.popitem(last=False)
        else:
            self._rendered.move_to_end(address)
        if broken:
            draws = Draws(self.settings.seed, 6, number_of(content.path))
            return content._replace(html=broken_html(content.html, draws))
        return content

    def _render(self, address: str) -> PageContent | None:
        index = self._index.get(address.partition("?")[0])
        if index is not None:
            return self._render_page(index)
        trap = find_trap(address) if self.settings.traps else None
        return None if trap is None else self._render_trap(trap)

    def _render_page(self, index: int) -> PageContent:
        node = self._nodes[index]
        links = self._linker.of_page(index)
        draws = Draws(self.settings.seed, 5, index)
        below = [self._nodes[child].topic for child in node.children]
        html = render(
            title=node.title,
            topics=[node.topic, node.topic, draws.pick(below) if below else node.topic],
            links=links,
            address=self.prefix + node.path,
            target_id=node.target_id,
            draws=draws,
        )
        kind: PageKind = "dead-end" if node.dead_end else "page"
        return PageContent(node.path, html, kind, node.target_id is not None, node.target_id, links)

    def _render_trap(self, trap: Trap) -> PageContent:
        links = self._linker.of_trap(trap)
        html = render(
            title=trap.title,
            topics=[trap.topic, trap.topic],
            links=links,
            address=self.prefix + trap.path,
            target_id=None,
            draws=Draws(self.settings.seed, 7, number_of(trap.path)),
        )
        return PageContent(trap.path, html, "trap", False, None, links)
