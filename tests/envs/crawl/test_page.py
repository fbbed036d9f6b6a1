"""Reading a page: which links may be followed, and what their words are."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.envs.crawl import page
from stoker.envs.crawl.page import BUCKETS, join, parse

HERE = "http://127.0.0.1:8000/s/1/reports/annual"
HTML = """
<html><head><title>Annual reports</title><link rel="canonical" href="/s/1/reports/annual"></head>
<body><nav><a href="/s/1/">Home</a></nav>
<article class="target" data-id="t-7">Found</article><article class="target">No name</article>
<ul><li><a href="2024?b=2&a=1#top">Last year</a> <em>dataset inside</em></li>
<li><a href="/s/1/reports/annual/2024?a=1&amp;b=2">the same</a></li>
<li><a href="#top">here</a><a href="">here</a><a href="/s/1/login" rel="nofollow">Log in</a></li>
<li><a href="http://example.invalid/x">Elsewhere</a><a href="//169.254.169.254/">Inside</a></li>
<li><a href="mailto:a@b.c">Mail</a><a href="javascript:alert(1)">Run</a><a>No address</a></li>
<li><a href="http://[broken">Broken</a><a href="https://127.0.0.1:8000/s/1/tls">TLS</a></li>
</ul></body></html>
"""


def test_links_that_may_be_followed_each_once() -> None:
    read = parse(HTML, HERE, "article.target")
    assert [link.url.removeprefix("http://127.0.0.1:8000") for link in read.links] == [
        "/s/1/reports/2024?a=1&b=2",
        "/s/1/reports/annual/2024?a=1&b=2",
        "/s/1/",
    ]
    assert [link.in_navigation for link in read.links] == [False, False, True]
    assert [link.place.depth for link in read.links] == [4, 5, 2]
    assert [link.place.has_query for link in read.links] == [True, True, False]
    assert read.links[1].place.section == "s/1/reports"
    assert read.features[:, BUCKETS:].tolist() == [
        [1, 4 / 8, 1, 0],
        [1, 5 / 8, 1, 0],
        [1, 2 / 8, 0, 1],
    ]


def test_targets_by_their_name_or_their_words() -> None:
    assert parse(HTML, HERE, "article.target").targets == ("t-7", "No name")
    assert parse(HTML, HERE, "em").targets == ("dataset inside",)


def test_the_words_of_a_link_are_those_on_it_beside_it_and_in_its_address() -> None:
    one = '<body><ul><li><a href="/x">{}</a> <em>{}</em></li></ul></body>'

    def words(text: str, beside: str = "") -> np.ndarray:
        return parse(one.format(text, beside), HERE, "b").features[0, :BUCKETS]

    assert words("report").shape == (BUCKETS,)
    assert (words("report") == words("REPORT")).all()
    assert (words("report", "dataset") >= words("report")).all()
    assert (words("report", "dataset") > words("report")).any()
    assert (words("report") != words("calendar")).any()
    assert words("of 12 !").sum() == 0


@pytest.mark.parametrize("html", ["", "<a href='/x'", "<<<>>>", "\x00\x01", "<p>" * 5000])
def test_broken_pages_are_pages(html: str) -> None:
    read = parse(html, HERE, "article.target")
    assert read.url == HERE
    assert read.targets == ()


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("/s/1/reports/annual", HERE),
        ("http://127.0.0.1:8000/elsewhere", "http://127.0.0.1:8000/elsewhere"),
        ("http://example.invalid/", HERE + "?view=list"),  # of another host: not to be believed
    ],
)
def test_its_canonical_address(stated: str, expected: str) -> None:
    html = f'<head><link rel="canonical" href="{stated}"></head>'
    assert parse(html, HERE + "?view=list", "b").url == expected


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("../x", "http://127.0.0.1:8000/s/1/x"),
        (" /x \n", "http://127.0.0.1:8000/x"),
        ("?q=1", HERE + "?q=1"),
        ("ftp://127.0.0.1:8000/", None),
        ("http://127.0.0.1:8001/", None),
        ("http://user@127.0.0.1:8000/", None),
    ],
)
def test_where_a_link_leads(href: str, expected: str | None) -> None:
    assert join(HERE, href) == expected


PATHS = st.text("ab./~-", max_size=9)
PARAMETERS = st.text("ab=&.~;", max_size=9)


@given(
    PATHS,
    st.none() | PARAMETERS,
    st.builds("{}{}{}".format, PATHS, st.just("?") | st.just("#"), PARAMETERS) | PATHS,
)
@example("a/b", None, "../../../a.b/a/")
@example("a", "x=1", "?b=1&a=2")
@example("", None, "a/../b")
def test_the_quick_way_to_join_addresses_says_what_the_standard_library_says(
    path: str, query: str | None, href: str
) -> None:
    base = f"http://127.0.0.1:8000/{path}" + ("" if query is None else f"?{query}")
    quick = page._joined_plainly(base, href)
    assert quick is None or quick == page._joined(base, href)


@given(PATHS, PARAMETERS)
@example("s/7/a", "b=1")
@example("", "")
def test_where_an_address_lies(path: str, query: str) -> None:
    url = join(HERE, f"/{path}?{query}")
    if url is None:
        return  # two slashes in front lead to another host
    parts = urlsplit(url)
    segments = [segment for segment in parts.path.split("/") if segment]
    assert page.place_of(url) == (
        "/".join(segments[:3]),
        len(segments),
        bool(parts.query),
        parts.path,
    )


@pytest.mark.parametrize("href", ["/a", "/", "a/b.html", "../a/", "b?x=1&a=", "/s/1/a-b_c~d#top"])
def test_most_addresses_are_joined_the_quick_way(href: str) -> None:
    assert page._joined_plainly(HERE, href) is not None


@pytest.mark.parametrize(
    "href", ["/" + "a" * 4000 + "!", "/" + "a/" * 2000 + "\\", "/" + "./" * 2000]
)
def test_no_address_takes_long_to_read(href: str) -> None:
    """However a page is written: these once took for ever, by a pattern that tried all ways."""
    began = time.process_time()
    join(HERE, href)
    parse(f'<a href="{href}">go</a>', HERE, "b")
    assert time.process_time() - began < 5
