"""Answers ready made: the right bytes, and no more of them and of sites than are allowed."""

from __future__ import annotations

from stoker.envs.crawl.shelf import Shelf
from stoker.envs.crawl.site import Site, SiteSettings

SMALL = SiteSettings(pages=20)


def test_an_answer_is_the_page_with_its_head() -> None:
    shelf = Shelf(SMALL)
    site = Site(SiteSettings(seed=3, pages=20), prefix="/s/3")
    for broken in (False, True):
        for _ in range(2):
            page, answer = site.page("/", broken=broken), shelf.page(3, "/", broken)
            assert page is not None
            assert answer is not None
            assert answer.status == 200
            assert answer.whole[answer.body_at :] == page.body
            head = answer.whole[: answer.body_at].decode()
            assert head.startswith("HTTP/1.1 200 OK\r\n")
            assert f"\r\nContent-Length: {len(page.body)}\r\n" in head
    assert shelf.page(3, "/nowhere") is None


def test_spellings_of_an_address_share_an_answer() -> None:
    shelf = Shelf(SMALL)
    first = shelf.page(3, "/?sid=1")
    assert first is not None
    assert shelf.page(3, "/?ref=a&view=list") is first
    assert shelf.page(4, "/") is not first


def test_the_sites_needed_last_stay() -> None:
    shelf = Shelf(SMALL, nodes=60)
    for seed in (1, 2, 3):
        shelf.page(seed, "/")
    shelf.page(1, "/calendar/2026/01")
    shelf.page(4, "/")
    assert shelf.seeds == [3, 1, 4]
    assert Shelf(SMALL, nodes=5).page(1, "/") is not None


def test_answers_stay_in_their_bounds_and_the_ones_asked_for_last_are_kept() -> None:
    shelf = Shelf(SMALL, most_bytes=20_000)
    home = shelf.page(1, "/")
    for month in range(1, 13):
        assert shelf.page(1, f"/calendar/2026/{month:02d}") is not None
        assert shelf.page(1, "/") is home
        assert shelf.bytes_kept <= 20_000
    assert shelf.bytes_kept > 10_000
    fresh = Shelf(SMALL).page(1, "/calendar/2026/01")
    assert shelf.page(1, "/calendar/2026/01") == fresh, "one that had to go is made again"


def test_an_answer_larger_than_all_that_may_be_kept_is_given_all_the_same() -> None:
    shelf = Shelf(SMALL, most_bytes=10)
    assert shelf.page(1, "/") == Shelf(SMALL).page(1, "/")
    assert shelf.bytes_kept == 0
