"""URLs and hosts in every spelling, addresses of every kind, limits that cannot work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.envs.crawl.allow import AllowList, canonical_host
from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.limits import Limits
from stoker.envs.crawl.urls import Target, follow, read_url
from stoker.errors import ConfigError

HERE = AllowList(("127.0.0.1", "site.test", "bücher.test", "ported.test:8080", "::1"))


def kind_of(url: str, allowed: AllowList = HERE) -> str:
    with pytest.raises(FetchError) as caught:
        read_url(url, allowed)
    return caught.value.kind


def test_a_user_name_is_named_as_the_reason() -> None:
    with pytest.raises(FetchError, match="has a user name in it"):
        read_url("http://user:word@site.test/", HERE)


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("http://site.test", "http://site.test/"),
        ("HTTP://SITE.TEST/", "http://site.test/"),
        ("http://site.test./", "http://site.test/"),
        ("http://site.test:80/", "http://site.test/"),
        ("http://site.test:/", "http://site.test/"),
        ("https://site.test:443/", "https://site.test/"),
        ("https://site.test:80/", "https://site.test:80/"),
        ("  http://site.test/\n", "http://site.test/"),
        ("http://site.test/a b", "http://site.test/a%20b"),
        ("http://site.test/a%20b", "http://site.test/a%20b"),
        ("http://site.test/ü?ü=ü#ü", "http://site.test/%C3%BC?%C3%BC=%C3%BC"),
        ("http://site.test/\udcfc", "http://site.test/%FC"),
        ("http://site.test/a\\b", "http://site.test/a%5Cb"),
        ("http://site.test?a", "http://site.test/?a"),
        ("http://site.test#a", "http://site.test/"),
        ("http://site.test/@x:1", "http://site.test/@x:1"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/"),
        ("http://BÜCHER.test/", "http://xn--bcher-kva.test/"),
        ("http://xn--bcher-kva.test/", "http://xn--bcher-kva.test/"),
        ("http://\uff53\uff49\uff54\uff45.test/", "http://site.test/"),
        ("http://site。test/", "http://site.test/"),
        ("http://\uff11\uff12\uff17.0.0.1/", "http://127.0.0.1/"),
        ("http://127.0.0.1./", "http://127.0.0.1/"),
        ("http://[::1]/", "http://[::1]/"),
        ("http://[0:0:0:0:0:0:0:1]:8080/", "http://[::1]:8080/"),
        ("http://ported.test:8080/", "http://ported.test:8080/"),
    ],
)
def test_spellings_of_what_is_allowed(url: str, read: str) -> None:
    target = read_url(url, HERE)
    assert target.url == read
    assert read_url(target.url, HERE) == target


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://other.test/", "refused-host"),
        ("http://site.test.evil.test/", "refused-host"),
        ("http://evilsite.test/", "refused-host"),
        ("http://www.site.test/", "refused-host"),
        ("http://ported.test/", "refused-host"),
        ("http://ported.test:8081/", "refused-host"),
        ("http://127.0.0.2/", "refused-host"),
        ("http://[::ffff:127.0.0.1]/", "refused-host"),
        ("http://[::ffff:7f00:1]/", "refused-host"),
        ("http://[::127.0.0.1]/", "refused-host"),
        ("http://[::]/", "refused-host"),
        ("http://0.0.0.0/", "refused-host"),
        ("http://2130706433/", "url"),
        ("http://0x7f000001/", "url"),
        ("http://0x7f.1/", "url"),
        ("http://0X7F.0.0.1/", "url"),
        ("http://017700000001/", "url"),
        ("http://0177.0.0.1/", "url"),
        ("http://127.1/", "url"),
        ("http://127.0.1/", "url"),
        ("http://127.0.0.01/", "url"),
        ("http://127.0.0.1.1/", "url"),
        ("http://127.0.0.256/", "url"),
        ("http://127.0.0.1../", "url"),
        ("http://127。1/", "url"),
        ("http://site.0x/", "url"),
        ("http://[::1%25lo]/", "url"),
        ("http://[::1%lo]/", "url"),
        ("http://[127.0.0.1]/", "url"),
        ("http://[::1]x/", "url"),
        ("http://[::1/", "url"),
        ("http://::1/", "url"),
        ("http://127.0.0.%31/", "url"),
        ("http://site%2etest/", "url"),
        ("http://site..test/", "url"),
        ("http://.site.test/", "url"),
        ("http://-site.test/", "url"),
        ("http://site.test:80:80/", "url"),
        ("http://site.test:port/", "url"),
        ("http://site.test:99999/", "url"),
        ("http://site.test:0/", "url"),
        ("http://site.test:-80/", "url"),
        ("http://user@site.test/", "url"),
        ("http://user:word@site.test/", "url"),
        ("http://@site.test/", "url"),
        ("http://site.test@evil.test/", "url"),
        ("http://site.test\\@evil.test/", "url"),
        ("http:\\\\site.test/", "url"),
        ("http://site.test\\evil.test/", "url"),
        ("http://site.test/\r\nX: y", "url"),
        ("http://si\tte.test/", "url"),
        ("http://site.test\x00.evil.test/", "url"),
        ("http://site test/", "url"),
        ("http://straße.test/", "url"),
        ("http:///path", "url"),
        ("http://", "url"),
        ("http:site.test", "url"),
        ("http://" + "a" * 5000 + ".test/", "url"),
        ("http://" + "a" * 64 + ".test/", "url"),
        ("http://site.test/" + "a" * 5000, "url"),
        ("site.test", "scheme"),
        ("//site.test/", "scheme"),
        ("", "scheme"),
        ("ftp://site.test/", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("file://site.test/etc/passwd", "scheme"),
        ("gopher://127.0.0.1:80/_x", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("data:,x", "scheme"),
        ("ws://site.test/", "scheme"),
        ("httpx://site.test/", "scheme"),
    ],
)
def test_spellings_of_what_is_not(url: str, kind: str) -> None:
    assert kind_of(url) == kind


@settings(deadline=None)
@given(st.text(max_size=40), st.sampled_from(["http://", "http:", "https://site.test", "//", ""]))
def test_any_text_is_read_or_refused(text: str, start: str) -> None:
    """And what is read stays on the list, and reads the same again."""
    try:
        target = read_url(start + text, HERE)
    except FetchError:
        return
    assert HERE.allows(target.host, target.port)
    assert read_url(target.url, HERE) == target
    assert target.url.isascii()


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_redirect_stays_on_the_list(location: str) -> None:
    try:
        target = follow(Target("http://site.test/a", "site.test", 80), location, HERE)
    except FetchError:
        return
    assert HERE.allows(target.host, target.port)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_an_address_has_one_spelling(number: int) -> None:
    octets = number.to_bytes(4, "big")
    usual = ".".join(map(str, octets))
    assert canonical_host(usual) == usual
    for odd in (str(number), hex(number), oct(number).replace("o", ""), f"{usual}.0"):
        with pytest.raises(ValueError, match="address in its usual form"):
            canonical_host(odd)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_may_be_dialled(address: str) -> None:
    assert HERE.allows_address(address, 80)


def test_an_address_of_the_list_may_be_dialled_on_its_port() -> None:
    allowed = AllowList(("site.test", "10.0.0.1:8080", "[fd00::1]:8080"))
    assert allowed.allows_address("10.0.0.1", 8080)
    assert allowed.allows_address("::ffff:10.0.0.1", 8080)
    assert allowed.allows_address("fd00:0::1", 8080)
    assert not allowed.allows_address("10.0.0.1", 80)
    assert not allowed.allows_address("fd00::1", 80)
    assert not allowed.allows_address("10.0.0.2", 8080)
    assert not allowed.allows_address("2002:a00:1::", 8080)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"allowed_hosts": ()}, "expected a tuple"),
        ({"allowed_hosts": "127.0.0.1"}, "expected a tuple"),
        ({"allowed_hosts": ["127.0.0.1"]}, "expected a tuple"),
        ({"allowed_hosts": ("http://site.test",)}, "'http://site.test': expected a host"),
        ({"allowed_hosts": ("*.site.test",)}, "wildcard"),
        ({"allowed_hosts": ("user@site.test",)}, "user"),
        ({"allowed_hosts": ("site.test:0",)}, "'0' is not a port"),
        ({"allowed_hosts": ("site.test:",)}, "is not a port"),
        ({"allowed_hosts": ("site.test:65536",)}, "'65536' is not a port"),
        ({"allowed_hosts": ("127.1",)}, "usual form"),
        ({"allowed_hosts": ("",)}, "not the name of a host"),
        ({"allowed_hosts": ("10.0.0.0/8",)}, "expected a host"),
        ({"connect_s": 0}, "connect_s is 0; expected seconds, more than 0"),
        ({"read_s": -1.0}, "read_s is -1.0"),
        ({"total_s": float("nan")}, "total_s is nan"),
        ({"total_s": float("inf")}, "total_s is inf"),
        ({"retry_base_s": -0.1}, "retry_base_s is -0.1; expected seconds, at least 0"),
        ({"retries": -1}, "retries is -1; expected a whole number, at least 0"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"retries": True}, "retries is True"),
        ({"max_body_bytes": 0}, "max_body_bytes is 0"),
        ({"max_body_bytes": 100, "max_decompressed_bytes": 99}, "less than max_body_bytes (100)"),
        ({"requests_per_s": 0}, "requests_per_s is 0"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"breaker_failures": 0}, "breaker_failures is 0"),
    ],
)
def test_limits_that_cannot_work(setting: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(**setting)
    assert told in str(caught.value)


def test_all_that_is_wrong_with_limits_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(allowed_hosts=("a b", "c*"), retries=-1, read_s=0)
    assert len(caught.value.problems) == 4


def test_limits_can_be_a_key() -> None:
    assert len({Limits(), Limits(), Limits(retries=1)}) == 2
