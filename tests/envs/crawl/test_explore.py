"""The rules of crawling, on a site of a few pages."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.envs.crawl.explore import (
    ACTIONS,
    BACK,
    LINKS,
    OBSERVED,
    PAGE_REWARD,
    REQUEST_COST,
    STOP,
    TARGET_REWARD,
    Exploration,
    Outcome,
)

HOST = "http://127.0.0.1:1"
PAGES = {
    "/": ["/a", "/b", "/a#again"],
    "/a": ["/a/1", "/a/2", "/"],
    "/b": [],
    "/a/1": ["/a/2", "/gone"],
    "/a/2": ["/", "/a?x=1"],
}
TARGETS = {"/a/1": ["one"], "/a/2": ["one", "two"]}


def html(path: str) -> str | None:
    if path.partition("?")[0] not in PAGES:
        return None
    path = path.partition("?")[0]
    links = "".join(f'<li><a href="{link}">go</a></li>' for link in PAGES[path])
    found = "".join(
        f'<article class="target" data-id="{t}"></article>' for t in TARGETS.get(path, ())
    )
    canonical = f'<link rel="canonical" href="{path}">'
    return f"<html><head>{canonical}</head><body>{found}<ul>{links}</ul></body></html>"


def begun(budget: int = 10) -> Exploration:
    episode = Exploration(HOST + "/", budget, "article.target")
    episode.begin(html("/") or "", HOST + "/")
    return episode


def shown(episode: Exploration) -> list[str]:
    asked = [episode.ask(i) for i in np.flatnonzero(episode.mask()[:LINKS]).tolist()]
    return [url.removeprefix(HOST) for url in asked if url]


def follow(episode: Exploration, path: str) -> Outcome:
    return episode.learn(shown(episode).index(path), html(path), HOST + path)


def test_links_are_shown_until_they_are_followed() -> None:
    episode = begun()
    assert shown(episode) == ["/a", "/b"]
    follow(episode, "/a")
    assert shown(episode) == ["/a/1", "/a/2"], "not the home page, which is known"
    follow(episode, "/a/2")
    assert shown(episode) == ["/a?x=1"]


def test_what_a_step_pays() -> None:
    episode = begun()
    page = PAGE_REWARD - REQUEST_COST
    assert follow(episode, "/a").reward == pytest.approx(page)
    assert follow(episode, "/a/1").reward == pytest.approx(page + TARGET_REWARD)
    assert follow(episode, "/a/2").reward == pytest.approx(page + TARGET_REWARD), (
        "one of two is new"
    )
    assert follow(episode, "/a?x=1").reward == pytest.approx(-REQUEST_COST), "the same page as /a"
    assert episode.metrics() == {"targets": 2.0, "pages": 4.0, "requests": 4.0, "failures": 0.0}


def test_a_page_that_is_not_there_costs_a_request_and_leads_nowhere() -> None:
    episode = begun()
    follow(episode, "/a")
    follow(episode, "/a/1")
    assert follow(episode, "/gone").reward == pytest.approx(-REQUEST_COST)
    assert shown(episode) == ["/a/2"], "it stands where it stood, and that link is known"
    assert episode.metrics()["failures"] == 1.0


def test_going_back_costs_nothing_and_asks_for_nothing() -> None:
    episode = begun()
    assert not episode.mask()[BACK], "nowhere to go back to"
    follow(episode, "/a")
    assert episode.mask()[BACK]
    assert episode.ask(BACK) is None
    assert episode.learn(BACK, None, None) == Outcome(0.0, False)
    assert shown(episode) == ["/b"]
    assert episode.requests == 1


def test_the_ends_of_an_episode() -> None:
    assert begun(budget=2).learn(STOP, None, None).is_over
    episode = begun(budget=2)
    assert not follow(episode, "/a").is_over
    assert not episode.learn(BACK, None, None).is_over
    assert follow(episode, "/b").is_over, "the budget is spent"


@pytest.mark.parametrize("action", [BACK, LINKS - 1])
def test_what_makes_no_sense_does_nothing_and_costs_a_request(action: int) -> None:
    episode = begun(budget=2)
    before = shown(episode)
    assert not episode.mask()[action]
    assert episode.ask(action) is None
    assert episode.learn(action, None, None) == Outcome(-REQUEST_COST, False)
    assert shown(episode) == before
    assert episode.learn(action, None, None).is_over, "so no episode is endless"


def test_an_observation_has_its_size_and_is_finite_wherever_one_stands() -> None:
    episode = begun()
    rng = np.random.default_rng(0)
    for _ in range(30):
        seen, mask = episode.observe(), episode.mask()
        assert seen.shape == (OBSERVED,)
        assert seen.dtype == np.float32
        assert np.isfinite(seen).all()
        assert (seen >= 0).all()
        assert mask.shape == (ACTIONS,)
        assert mask[STOP]
        action = int(rng.choice(np.flatnonzero(mask[:STOP]))) if mask[:STOP].any() else STOP
        url = episode.ask(action)
        path = None if url is None else url.removeprefix(HOST)
        if episode.learn(action, path and html(path), url).is_over:
            episode = begun()


def test_what_was_found_in_a_section_shows_on_its_other_links() -> None:
    episode = begun()
    follow(episode, "/a")
    before = episode.observe()
    follow(episode, "/a/1")
    after = episode.observe()
    assert not np.array_equal(before, after)
    assert after[-4] > 0, "targets a page"
