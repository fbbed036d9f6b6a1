"""The rules of crawling, without any I/O: what to ask for, what an answer is worth, what is seen.

An episode explores one site. The agent stands on a page and picks one of its links, goes back to
the page it came from, or stops. Following a link costs one of `budget` requests; going back costs
none, as that page is known, and cannot be done more often than following. See docs/crawl.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stoker.envs.crawl.page import (
    BUCKETS,
    DEEPEST,
    LINK_FEATURES,
    ParsedPage,
    parse,
    place_of,
)

LINKS = 16
"""Links that are shown at once; more come up as those before them are followed."""
BACK, STOP = LINKS, LINKS + 1
ACTIONS = LINKS + 2

_OF_LINK = LINK_FEATURES + 2
_OF_PAGE = BUCKETS + 4
_OF_GRAPH = 7
OBSERVED = LINKS * _OF_LINK + _OF_PAGE + _OF_GRAPH
"""Numbers of an observation."""

TARGET_REWARD, PAGE_REWARD, REQUEST_COST = 1.0, 0.02, 0.01


class Outcome(NamedTuple):
    """What a step has come to."""

    reward: float
    is_over: bool


@dataclass
class _Tally:
    """What was found below a section of the site."""

    pages: int = 0
    targets: int = 0

    @property
    def rate(self) -> float:
        return self.targets / self.pages if self.pages else 0.0


class Exploration:
    """One episode. `ask` says what to fetch for an action; `learn` takes what came of it."""

    def __init__(self, start: str, budget: int, target: str) -> None:
        self.start, self._budget, self._target = start, budget, target
        self.requests = self.failures = 0
        self.targets: set[str] = set()
        self._known: set[str] = set()  # addresses that were asked for, by any of their spellings
        self._pages: set[str] = set()  # pages found, by their canonical address
        self._way: list[ParsedPage] = []
        self._sections: defaultdict[str, _Tally] = defaultdict(_Tally)
        self._ahead: set[str] = set()  # addresses that links led to, and that were not asked for
        self._shown: list[int] = []  # links of the page

    def ask(self, action: int) -> str | None:
        """The address to fetch; None if the action needs none."""
        if action >= len(self._shown):
            return None
        return self._way[-1].links[self._shown[action]].url

    def begin(self, html: str, url: str) -> None:
        """The first page, found at `url`, which redirects may have led to."""
        self._note(self.start)
        self._note(url)
        self._arrive(html, url)
        self._look()

    def learn(self, action: int, html: str | None, url: str | None) -> Outcome:
        """Take in the page found at `url`, or None where there was none, after `action`.

        An action that the mask does not allow does nothing, and costs as much as a request.
        """
        asked, reward = self.ask(action), 0.0
        if asked is not None:
            self._note(asked)
        if action == BACK and len(self._way) > 1:
            self._way.pop()
        elif action != STOP:
            self.requests += 1
            reward = -REQUEST_COST
            if html is None or url is None:
                self.failures += 1
            else:
                reward += self._arrive(html, url)
        self._look()
        return Outcome(reward, action == STOP or self.requests >= self._budget)

    def _arrive(self, html: str, url: str) -> float:
        page = parse(html, url, self._target)
        self._way.append(page)
        if page.url in self._pages:
            return 0.0  # another spelling of one that is known
        self._pages.add(page.url)
        self._note(page.url)
        found = set(page.targets) - self.targets
        self.targets |= found
        tally = self._sections[place_of(page.url).section]
        tally.pages += 1
        tally.targets += len(found)
        self._ahead.update(link.url for link in page.links if link.url not in self._known)
        return PAGE_REWARD + TARGET_REWARD * len(found)

    def _note(self, url: str) -> None:
        self._known.add(url)
        self._ahead.discard(url)

    def _look(self) -> None:
        """Show links of the page that were not followed yet."""
        links, known = self._way[-1].links, self._known
        self._shown = [i for i, link in enumerate(links) if link.url not in known][:LINKS]

    def mask(self) -> np.ndarray:
        """Which actions make sense, bool [ACTIONS]."""
        allowed = np.zeros(ACTIONS, bool)
        allowed[: len(self._shown)] = True
        allowed[BACK] = len(self._way) > 1
        allowed[STOP] = True
        return allowed

    def observe(self) -> np.ndarray:
        """Float32 [OBSERVED]: every link shown, the page, and what was found so far."""
        seen = np.zeros(OBSERVED, np.float32)
        links = seen[: LINKS * _OF_LINK].reshape(LINKS, _OF_LINK)[: len(self._shown)]
        here = self._way[-1]
        links[:, :LINK_FEATURES] = here.features[self._shown]
        for row, i in zip(links, self._shown, strict=True):
            tally = self._sections.get(here.links[i].place.section)
            if tally is not None:
                row[LINK_FEATURES:] = tally.rate, min(tally.pages, 10) / 10
        page = seen[LINKS * _OF_LINK : LINKS * _OF_LINK + _OF_PAGE]
        page[:BUCKETS] = here.words
        page[BUCKETS:] = (
            bool(here.targets),
            min(len(here.links), 50) / 50,
            len(self._shown) / LINKS,
            self._sections[place_of(here.url).section].rate,
        )
        pages, targets = len(self._pages), len(self.targets)
        seen[-_OF_GRAPH:] = (
            1 - self.requests / self._budget,
            min(pages / self._budget, 1.0),
            min(targets / 20, 2.0),
            targets / max(1, pages),
            min(len(self._way) / DEEPEST, 2.0),
            min(len(self._ahead) / 100, 2.0),
            self.failures / max(1, self.requests),
        )
        return seen

    def metrics(self) -> dict[str, float]:
        """Of the episode so far."""
        return {
            "targets": float(len(self.targets)),
            "pages": float(len(self._pages)),
            "requests": float(self.requests),
            "failures": float(self.failures),
        }
