"""Sites: equal settings give equal bytes, links lead where they say, words are worth reading."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.envs.crawl.baselines import at_random, breadth_first, by_cues, promise
from stoker.envs.crawl.draws import Draws
from stoker.envs.crawl.site import Link, PageContent, Site, SiteSettings, canonical
from stoker.envs.crawl.words import FILLER, PULL, TOPICS
from stoker.errors import ConfigError

UNSEEN = range(9000, 9010)
BUDGET = 60
CHECKSUM = "e07de1b93e3c8f9e1efd7c89bf342726f9e64a7ab86596ac15c70c1ab58fe749"
FIRST_WORDS = [16613338946343043936, 5167718485781182436]

KINDS_OF_SITE = st.builds(
    SiteSettings,
    seed=st.integers(0, 2**63 - 1),
    pages=st.integers(20, 120),
    targets=st.floats(0, 0.3),
    links=st.integers(2, 40),
    dead_ends=st.floats(0, 0.3),
    traps=st.floats(0, 1),
    duplicates=st.floats(0, 1),
    outside=st.floats(0, 1),
)


class Reader(HTMLParser):
    """What a client finds on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []
        self.targets: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a":
            self.links.append((found["href"] or "", found.get("rel") == "nofollow"))
        if tag == "article" and found["class"] == "target":
            self.targets.append(found["data-id"])


def pages_of(site: Site) -> Iterator[PageContent]:
    """Every real page, and some of the traps."""
    for path in site.graph():
        content = site.page(path)
        assert content is not None
        yield content
    if site.settings.traps:
        for path in ("/calendar/2026/11", "/calendar/1/01?page=7", "/tag/report?page=2&with=news"):
            content = site.page(path)
            assert content is not None
            yield content


def digest(site: Site) -> str:
    return hashlib.sha256(b"".join(page.body for page in pages_of(site))).hexdigest()


def balanced(html: str) -> bool:
    """Whether as many paragraphs, entries, links and articles end as begin."""
    return all(
        len(re.findall(rf"<{tag}\b", html)) == html.count(f"</{tag}>")
        for tag in ("p", "li", "a", "em", "article", "h1", "div", "ul", "footer")
    )


def reached(graph: dict[str, tuple[str, ...]], start: str) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        for path in graph[waiting.pop()]:
            if path not in found:
                found.add(path)
                waiting.append(path)
    return found


def test_equal_settings_give_equal_bytes_on_every_machine() -> None:
    site = Site(SiteSettings(seed=7, pages=60), prefix="/s/7")
    assert digest(site) == CHECKSUM
    assert digest(Site(SiteSettings(seed=7, pages=60), prefix="/s/7")) == CHECKSUM


def test_bytes_depend_on_neither_the_order_of_requests_nor_the_cache() -> None:
    straight, back = Site(SiteSettings(seed=3)), Site(SiteSettings(seed=3), cached=2)
    paths = list(straight.graph())
    forward = [straight.page(path) for path in paths]
    assert [back.page(path) for path in reversed(paths)][::-1] == forward


def test_other_seeds_give_other_sites() -> None:
    assert len({digest(Site(SiteSettings(seed=seed, pages=40))) for seed in range(20)}) == 20
    assert len({frozenset(Site(SiteSettings(seed=seed)).targets) for seed in range(20)}) == 20


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(KINDS_OF_SITE)
def test_every_link_leads_to_a_page_or_says_that_it_leads_to_none(kind: SiteSettings) -> None:
    site = Site(kind, prefix="/s/1")
    for page in pages_of(site):
        for link in page.links:
            absolute = urljoin(f"http://127.0.0.1/s/1{page.path}", link.href)
            parts = urlsplit(absolute)
            if link.kind in ("outside", "private"):
                assert (link.path, parts.scheme) == (None, "http")
                assert parts.hostname != "127.0.0.1"
            elif link.kind == "mail":
                assert (link.path, parts.scheme) == (None, "mailto")
            else:
                assert parts.path.startswith("/s/1/")
                address = parts.path.removeprefix("/s/1") + f"?{parts.query}" * bool(parts.query)
                content = site.page(address)
                assert content is not None
                assert link.path == canonical(address) == content.path
                assert (content.kind == "trap") == (link.kind == "trap")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(KINDS_OF_SITE)
def test_a_site_has_what_its_settings_say(kind: SiteSettings) -> None:
    site = Site(kind)
    graph = site.graph()
    assert len(site) == len(graph) == kind.pages
    assert reached(graph, site.home) == set(graph)
    contents = {path: site.page(path) for path in graph}
    ends = {path for path, page in contents.items() if page and page.kind == "dead-end"}
    assert ends == {path for path, onward in graph.items() if not onward}
    assert len(ends) <= round(kind.dead_ends * kind.pages)
    held = {path: page.target_id for path, page in contents.items() if page and page.is_target}
    assert held == site.targets
    assert len(set(held.values())) == len(held) <= round(kind.targets * kind.pages)


def test_shares_and_means_come_out_as_asked() -> None:
    site = Site(SiteSettings(seed=5, pages=4000, targets=0.2, dead_ends=0.25, traps=0.3))
    pages = [site.page(path) for path in site.graph()]
    whole = [page for page in pages if page is not None and page.links]
    assert len(site.targets) == 800
    assert len(pages) - len(whole) == 1000
    links = [sum(link.kind == "content" for link in page.links) for page in whole]
    assert sum(links) / len(links) == pytest.approx(12, abs=1.5)
    trapped = [any(link.kind == "trap" for link in page.links) for page in whole]
    assert sum(trapped) / len(trapped) == pytest.approx(0.3, abs=0.08)
    spelled = [link for page in whole for link in page.links if link.kind == "content"]
    assert sum("?" in x.href or "#" in x.href for x in spelled) / len(spelled) == pytest.approx(
        0.15, abs=0.02
    )
    assert any(link.href.startswith("../") for link in spelled)
    assert any(link.nofollow for link in spelled)
    kinds = {link.kind for page in whole for link in page.links}
    assert {"navigation", "breadcrumb", "outside", "private", "mail"} <= kinds


def test_html_says_what_the_record_says() -> None:
    site = Site(SiteSettings(seed=2))
    for page in pages_of(site):
        read = Reader(page.html)
        assert read.links == [(link.href, link.nofollow) for link in page.links]
        assert read.targets == ([page.target_id] if page.is_target else [])
        assert 1_000 <= len(page.body) <= 6_000


def test_a_broken_page_is_broken_and_still_has_its_links() -> None:
    site = Site(SiteSettings(seed=2))
    unreadable = 0
    for page in pages_of(site):
        broken = site.page(page.path, broken=True)
        assert broken is not None
        assert balanced(page.html)
        assert not balanced(broken.html)
        assert broken.links == page.links
        assert site.page(page.path, broken=True) == broken
        assert {link.href for link in page.links} <= {href for href, _ in Reader(broken.html).links}
        try:
            broken.body.decode()
        except UnicodeDecodeError:
            unreadable += 1
    assert unreadable > 100


def test_a_lenient_parser_finds_links_and_targets_on_a_broken_page() -> None:
    parser = pytest.importorskip("selectolax.lexbor")
    site = Site(SiteSettings(seed=2))
    for page in pages_of(site):
        broken = site.page(page.path, broken=True)
        assert broken is not None
        tree = parser.LexborHTMLParser(broken.body)
        found = {node.attributes["href"] for node in tree.css("a[href]")}
        assert {link.href for link in page.links} == found
        targets = [node.attributes["data-id"] for node in tree.css("article.target")]
        assert targets == ([page.target_id] if page.is_target else [])


def test_traps_have_no_end_and_hold_nothing() -> None:
    site = Site(SiteSettings(seed=4))
    home = site.page(site.home)
    assert home is not None
    for entrance in [link.path for link in home.links if link.kind == "trap"]:
        seen: set[str] = set()
        waiting = [entrance]
        while len(seen) < 500:
            path = waiting.pop(0)
            page = site.page(path or "")
            assert page is not None
            assert (page.kind, page.is_target) == ("trap", False)
            new = {link.path for link in page.links if link.kind == "trap"} - seen - {None}
            seen |= {path for path in new if path}
            waiting += sorted(path for path in new if path)
        assert not seen & set(site.graph())
    assert site.page("/calendar/31415926/12?page=27182818284") is not None


def test_a_site_may_have_no_traps() -> None:
    site = Site(SiteSettings(traps=0.0))
    assert site.page("/calendar/2026/11") is None
    assert not any(link.kind == "trap" for page in pages_of(site) for link in page.links)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "/nowhere",
            "",
            "//",
            "/calendar/2026/13",
            "/calendar/0/01",
            "/calendar/2026",
            "/tag/zzz",
        ),
        *("/calendar/2026/11?page=0", "/calendar/2026/11?page=x", "/tag/report?page=" + "9" * 30),
        "/calendar/\u0662/01",
    ],
)
def test_there_is_no_page_at_an_address_that_no_link_has(address: str) -> None:
    assert Site(SiteSettings(pages=20)).page(address) is None


def test_spellings_of_an_address_are_one_page() -> None:
    site = Site(SiteSettings(seed=1))
    path = next(iter(site.targets))
    for spelled in ("#part-1", "?sid=1", "?ref=a&view=list", "?view=list&ref=a", "?ref=b#part-2"):
        assert canonical(path + spelled) == path
        assert site.page(path + spelled) == site.page(path)
    assert canonical("/tag/news?with=report&sid=3&page=2") == "/tag/news?page=2&with=report"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"pages": 3}, "pages is 3; a site needs a whole number from 20 to 100000"),
        ({"pages": 30.5}, "pages is 30.5"),
        ({"targets": 0.9}, "targets is 0.9; a site needs a number from 0.0 to 0.3"),
        ({"traps": float("nan")}, "traps is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"dead_ends": "many"}, "dead_ends is 'many'"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SiteSettings(**wrong)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SiteSettings(pages=0, links=0, outside=2)
    assert len(caught.value.problems) == 3


def test_no_word_stands_for_two_topics() -> None:
    words = [word for topic in TOPICS for word in topic.words]
    assert len(words) == len(set(words)) == len(PULL)
    assert not set(words) & set(FILLER)


def test_reading_the_words_finds_far_more_than_walking_on_sites_never_seen() -> None:
    sites = [Site(SiteSettings(seed=seed)) for seed in UNSEEN]
    read = sum(by_cues(site, BUDGET).targets for site in sites)
    broad = sum(breadth_first(site, BUDGET).targets for site in sites)
    luck = sum(at_random(site, BUDGET, seed).targets for site in sites for seed in range(5)) / 5
    assert broad > 0
    assert luck > 0
    assert read >= 3 * broad
    assert read >= 4 * luck
    assert read < 0.9 * sum(len(site.targets) for site in sites)


def test_crawls_stay_in_their_budget() -> None:
    site = Site(SiteSettings(seed=1))
    for crawl in (breadth_first(site, 33), at_random(site, 33), by_cues(site, 33)):
        assert crawl.requests == 33
        assert crawl.targets <= crawl.pages <= 33
    everything = breadth_first(Site(SiteSettings(seed=1, traps=0.0)), 10_000)
    assert everything == (40, 400, 400)


def test_cues_are_noisy() -> None:
    """Neither does a promising link always lead to a target, nor a dull one never."""
    site = Site(SiteSettings(seed=11))
    links = [x for page in pages_of(site) for x in page.links if x.kind == "content"]

    def hits(chosen: list[Link]) -> float:
        return sum(link.path in site.targets for link in chosen) / len(chosen)

    ranked = sorted(links, key=promise)
    tenth = len(ranked) // 10
    assert 0 < hits(ranked[: 5 * tenth]) < 0.1
    assert 0.3 < hits(ranked[-tenth:]) < 0.9


def test_a_page_is_rendered_in_well_under_a_millisecond() -> None:
    """0.16 ms where it was measured; the best of three, on a machine that may be busy."""
    taken = []
    for _ in range(3):
        site = Site(SiteSettings(seed=8), cached=1)
        paths = list(site.targets)
        start = time.thread_time()
        for path in paths:
            site.page(path)
        taken.append((time.thread_time() - start) / len(paths))
    assert min(taken) < 0.001


def test_draws_are_the_same_one_by_one_and_by_the_block() -> None:
    """SplitMix64 as it was published, from the state that the parts lead to."""

    def published(state: int, count: int) -> list[int]:
        words = []
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
            word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
            words.append(word ^ (word >> 31))
        return words

    for parts in ((), (1, 2), (2**63 - 1, 2**64 - 1)):
        draws = Draws(*parts)
        assert [draws.word() for _ in range(5000)] == published(Draws(*parts)._state, 5000)
    assert Draws(1).then(2).word() == FIRST_WORDS[0]


def test_draws_are_uniform_and_fixed() -> None:
    draws = Draws(1, 2)
    assert [draws.word() for _ in range(2)] == FIRST_WORDS
    counts = [0] * 10
    for _ in range(20_000):
        counts[draws.below(10)] += 1
    assert min(counts) > 1800
    assert max(counts) < 2200
    assert sorted(draws.shuffled(range(50))) == list(range(50))
    assert draws.shuffled(range(50)) != list(range(50))
    assert set(draws.pick_some("abc", 200)) == set("abc")
    assert len(draws.pick_some("abc", 13)) == 13
