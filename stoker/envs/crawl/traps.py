"""Pages without end that never hold a target: a calendar, and tags upon tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from stoker.envs.crawl.draws import Draws, number_of
from stoker.envs.crawl.words import CALENDAR, PULL, TAG, TOPICS

_CALENDAR = re.compile(r"/calendar/([1-9]\d{0,11})/(0[1-9]|1[0-2])")
_TAG = re.compile(r"/tag/([a-z]{1,20})")
_PAGE = re.compile(r"[1-9]\d{0,17}")
_WORDS = tuple(PULL)


class Trap(NamedTuple):
    """A page of a trap."""

    path: str
    """Canonical path and query."""
    topic: int
    title: str
    first: int
    """The year of a calendar; 0 of a tag."""
    second: int
    """The month of a calendar; 0 of a tag."""
    page: int


def find_trap(path_and_query: str) -> Trap | None:
    """The page of a trap at a canonical address; None where no trap has such a page."""
    path, _, query = path_and_query.partition("?")
    parameters = dict(pair.partition("=")[::2] for pair in query.split("&")) if query else {}
    number = parameters.get("page", "1")
    if not _PAGE.fullmatch(number):
        return None
    page = int(number)
    if month := _CALENDAR.fullmatch(path):
        title = f"Calendar {month[1]}-{month[2]}, page {page}"
        return Trap(path_and_query, CALENDAR, title, int(month[1]), int(month[2]), page)
    tag = _TAG.fullmatch(path)
    if tag and tag[1] in PULL:
        return Trap(path_and_query, TAG, f"Tagged {tag[1]}, page {page}", 0, 0, page)
    return None


def entrances(seed: int, draws: Draws) -> Iterator[tuple[str, str]]:
    """Address and text of the links from a real page into each trap."""
    year = 2000 + Draws(seed, 3).below(30)
    month = 1 + draws.below(12)
    yield f"/calendar/{year}/{month:02d}", draws.pick(TOPICS[CALENDAR].words)
    yield f"/tag/{draws.pick(_WORDS)}", draws.pick(TOPICS[TAG].words)


def onward(trap: Trap, seed: int) -> Iterator[tuple[str, str]]:
    """Address and text of the links from a trap to more of it."""
    draws = Draws(seed, 4, number_of(trap.path))
    words = TOPICS[trap.topic].words
    here = trap.path.partition("?")[0]
    yield f"{here}?page={trap.page + 1}", "next page"
    if trap.topic == CALENDAR:
        months = 12 * trap.first + trap.second - 1
        for later, text in ((1, "next month"), (-1, "previous month"), (12, "next year")):
            year, month = divmod(months + later, 12)
            if 1 <= year < 10**12:
                yield f"/calendar/{year}/{month + 1:02d}", text
        for day in draws.pick_some(range(1, 29), 4):
            yield f"{here}?page={trap.page}&day={day}", f"{draws.pick(words)} {day}"
        return
    for word in draws.pick_some(_WORDS, 4):
        yield f"/tag/{word}", f"{draws.pick(words)} {word}"
    for word in draws.pick_some(_WORDS, 4):
        yield f"{here}?with={word}&page={trap.page}", f"{draws.pick(words)} {word}"
