"""How numbers may be written."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.config.numbers import counted, format_count, parse_count, parse_seconds, parse_sizes


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("50M", 50_000_000),
        ("1e6", 1_000_000),
        ("64k", 64_000),
        ("64K", 64_000),
        ("1.5M", 1_500_000),
        ("2B", 2_000_000_000),
        ("2G", 2_000_000_000),
        ("10_000", 10_000),
        ("10,000", 10_000),
        (" 7 ", 7),
        ("-3", -3),
        ("-2k", -2000),
        ("+4", 4),
        ("0", 0),
        (12, 12),
        (1e6, 1_000_000),
        (3.0, 3),
        ("1e23", 10**23),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_counts_are_read(written: object, meant: int) -> None:
    found = parse_count(written)
    assert found == meant
    assert type(found) is int


@pytest.mark.parametrize(
    "junk",
    [
        *("", "k", "M", "many", "1.5", "0.5k5", "1.0005k", "1e-3", "1 2", "--3", "5kk", "0x10"),
        *("nan", "snan", "inf", "-inf", "1e400", "1e999999999", "9" * 5000),
        *(True, False, None, [], {}, 1.5, float("nan"), float("inf")),
    ],
)
def test_junk_is_refused_and_shown(junk: object) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        parse_count(junk)


@given(st.integers(0, 10**9))
@example(1002)
def test_a_decimal_is_read_exactly(millionths: int) -> None:
    """Binary fractions must not creep in: 0.001002 * 1e6 is 1001.9999999999999 for a float."""
    written = f"{millionths // 10**6}.{millionths % 10**6:06}M"
    assert parse_count(written) == millionths


@given(st.integers(-(10**15), 10**15))
def test_what_is_formatted_reads_back(value: int) -> None:
    assert parse_count(format_count(value)) == value


def test_format_is_short() -> None:
    assert [format_count(x) for x in (0, 999, 64_000, 50_000_000)] == ["0", "999", "64k", "50M"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1024,512,256", (1024, 512, 256)),
        ("1024, 512, 256", (1024, 512, 256)),
        ("1024-512-256", (1024, 512, 256)),
        ("1k,512", (1000, 512)),
        ("64", (64,)),
        ("64,", (64,)),
        (64, (64,)),
        ([256, "128"], (256, 128)),
        ((32,), (32,)),
        ("", ()),
        ([], ()),
        ("256,-128", (256, -128)),
    ],
)
def test_sizes_are_read(written: object, meant: tuple[int, ...]) -> None:
    assert parse_sizes(written) == meant


@pytest.mark.parametrize(
    "junk", ["256,wide", "64,,64", [256, None], [True], None, {"a": 1}, True, 1.5]
)
def test_sizes_that_are_none(junk: object) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_sizes(junk)


def test_one_is_told_apart_from_many() -> None:
    told = [counted(number, "worker") for number in (0, 1, 2, 1024)]
    assert told == ["0 workers", "1 worker", "2 workers", "1,024 workers"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("10m", 600), ("1.5h", 5400), ("1d", 86_400), ("45", 45), (2.5, 2.5)],
)
def test_lengths_of_time_are_read(written: object, seconds: float) -> None:
    assert parse_seconds(written) == seconds


@pytest.mark.parametrize("written", ["", "m", "0", "-3s", "ten minutes", "inf", "nan", True, None])
def test_what_is_no_length_of_time_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="no length of time above 0"):
        parse_seconds(written)
