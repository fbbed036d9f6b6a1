"""Reference crawls without a network: what an agent has to beat, and what reading cues brings."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from typing import NamedTuple

from stoker.envs.crawl.draws import Draws
from stoker.envs.crawl.site import Link, Site
from stoker.envs.crawl.words import PULL

_LETTERS = re.compile(r"[a-z]+")


class Crawl(NamedTuple):
    """What a crawl has found."""

    targets: int
    pages: int
    """Different real pages."""
    requests: int


Priority = Callable[[Link, int], float]
"""Of a link and how many were seen before it: the lowest is followed first."""


def breadth_first(site: Site, budget: int) -> Crawl:
    """Follows links in the order in which it saw them."""
    return _crawl(site, budget, lambda link, order: order)


def at_random(site: Site, budget: int, seed: int = 0) -> Crawl:
    """Follows any link that it saw, each as likely."""
    draws = Draws(seed, site.settings.seed)
    return _crawl(site, budget, lambda link, order: draws.uniform())


def by_cues(site: Site, budget: int) -> Crawl:
    """Follows the link whose words lead most often to targets, on any site."""
    return _crawl(site, budget, lambda link, order: -promise(link))


def promise(link: Link) -> float:
    """What the words of a link say: its text, the last segments of its path, how deep it leads."""
    path = (link.path or "").partition("?")[0]
    above, _, last = path.rpartition("/")
    said = 1.2 * _pull(link.text) + 0.5 * _pull(link.note)
    return said + 1.5 * _pull(last) + 0.5 * _pull(above) + 0.1 * min(4, path.count("/"))


def _pull(text: str) -> float:
    pulls = [PULL[word] for word in _LETTERS.findall(text.lower()) if word in PULL]
    return sum(pulls) / len(pulls) if pulls else 0.0


def _crawl(site: Site, budget: int, priority: Priority) -> Crawl:
    """Asks for one page after another from the home page on, for none of them twice.

    Links marked `nofollow` and those that leave the site are let be, as by a polite crawler.
    """
    frontier: list[tuple[float, int, str]] = [(0.0, 0, site.home)]
    seen = {site.home}
    targets = pages = requests = 0
    while frontier and requests < budget:
        content = site.page(heapq.heappop(frontier)[2])
        requests += 1
        if content is None:
            continue
        targets += content.is_target
        pages += content.kind != "trap"
        for link in content.links:
            if link.path is not None and not link.nofollow and link.path not in seen:
                seen.add(link.path)
                order = len(seen)
                heapq.heappush(frontier, (priority(link, order), order, link.path))
    return Crawl(targets, pages, requests)
