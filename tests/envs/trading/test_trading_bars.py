"""Bars from files, and a sentence for everything that can be wrong with them."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from portfolios import bars_of, replaced

from stoker.envs.trading.bars import COLUMNS, Bars
from stoker.envs.trading.csv_files import read_bars
from stoker.envs.trading.env import Trading
from stoker.envs.trading.market import synthetic_bars
from stoker.errors import ConfigError

GOOD = """time,open,high,low,close,volume
1,10,12,9,11,100
2,11,13,10,12,0
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def write_bars(bars: Bars, folder: Path) -> None:
    """A file for each asset."""
    for asset, name in enumerate(bars.names):
        columns = [bars.time, *(getattr(bars, column)[:, asset] for column in COLUMNS[1:])]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = (map(float, row) for row in zip(*columns, strict=True))
            csv.writer(file).writerows([COLUMNS, *rows])


def same(one: Bars, other: Bars) -> bool:
    return one.names == other.names and all(
        np.array_equal(getattr(one, column), getattr(other, column)) for column in COLUMNS
    )


def test_what_is_written_is_read_again_to_the_bit(tmp_path: Path) -> None:
    bars = synthetic_bars(3, 30)
    write_bars(bars, tmp_path)
    assert same(read_bars(tmp_path), bars)
    assert same(read_bars([tmp_path / f"{name}.csv" for name in bars.names]), bars)
    env = Trading(str(tmp_path), lookback=3, episode_bars=5)
    assert env.action_space.shape == (3,)


def test_columns_come_in_any_order_and_case_and_others_are_ignored(tmp_path: Path) -> None:
    text = "Volume,note, CLOSE,Low,High,Open,Time\n100,x,11,9,12,10,1\n\n0,y,12,10,13,11,2\n"
    bars = read_bars(write(tmp_path, "a.csv", text))
    assert same(bars, read_bars(write(tmp_path, "a.csv", GOOD)))


def test_one_file_may_hold_several_assets(tmp_path: Path) -> None:
    text = """symbol,time,open,high,low,close,volume
B,2024-01-01,1,1,1,1,5
A,2024-01-01,2,2,2,2,6
B,2024-01-02T00:00+00:00,3,3,3,3,7
A,2024-01-02,4,4,4,4,8
"""
    bars = read_bars(write(tmp_path, "all.csv", text))
    assert bars.names == ("B", "A")
    assert bars.time.tolist() == [1704067200, 1704153600]
    assert bars.close.tolist() == [[1, 2], [3, 4]]
    assert bars.volume.tolist() == [[5, 6], [7, 8]]


def test_assets_are_joined_at_the_times_that_all_have_and_it_is_said(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", GOOD + "3,1,1,1,1,1\n5,1,1,1,1,1\n")
    write(tmp_path, "b.csv", GOOD + "4,1,1,1,1,1\n5,2,2,2,2,2\n")
    write(tmp_path, "c.csv", GOOD + "5,3,3,3,3,3\n")
    said = "3 bars are common to all and are kept; left out are 1 of 4 bars of a, 1 of 4 bars of b."
    with pytest.warns(UserWarning, match=re.escape(said)):
        bars = read_bars(tmp_path)
    assert bars.time.tolist() == [1, 2, 5]
    assert bars.close.tolist() == [[11, 11, 11], [12, 12, 12], [1, 2, 3]]


def test_assets_without_a_common_time_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", GOOD)
    write(tmp_path, "b.csv", GOOD.replace("\n1,", "\n7,").replace("\n2,", "\n8,"))
    with pytest.raises(
        ConfigError, match="No time is common to all assets \\(a from 1, b from 7\\)"
    ):
        read_bars(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a.csv: it is empty; expected a line that names the columns (time, open"),
        ("time,open,high,low,close,volume\n", "it names columns and has no bars"),
        (
            "time,open,high,low\n1,1,1,1\n",
            "columns are time, open, high, low, without close, volume",
        ),
        (GOOD.replace("time", "Open"), "without time"),
        (GOOD.replace("\n", ",Close\n", 1), "it has more than one column close"),
        (GOOD + "3,1,1\n", "line 4 has 3 fields; expected 6"),
        (GOOD + "3,1,1,1,dear,1\n", "line 4: close is 'dear'; expected a number."),
        (GOOD + "3,1,1,1,,1\n", "line 4: close is ''; expected a number."),
        (GOOD + "soon,1,1,1,1,1\n", "line 4: time is 'soon'; expected a number or a date"),
        (
            GOOD + "3,1,1,1,nan,1\n",
            "a: close is nan at bar 3 of 3; expected a finite number, above 0",
        ),
        (GOOD + "3,1,inf,1,1,1\n", "a: high is inf at bar 3 of 3"),
        (GOOD + "3,0,1,1,1,1\n4,0,1,1,1,1\n", "a: open is 0 at bar 3 of 4 (and 1 more)"),
        (GOOD + "3,1,1,-1,1,1\n", "a: low is -1 at bar 3 of 3; expected a finite number, above 0"),
        (
            GOOD + "3,1,1,1,1,-1\n",
            "a: volume is -1 at bar 3 of 3; expected a finite number, 0 or more",
        ),
        (GOOD + "3,1,1,2,1,1\n", "a: high is 1, below low (2), at bar 3 of 3"),
        (GOOD + "1.5,1,1,1,1,1\n", "a: the time of bar 3 of 3 is not after the one before"),
        (GOOD + "2,1,1,1,1,1\n", "a: the time of bar 3 of 3 is not after the one before"),
        (GOOD + "nan,1,1,1,1,1\n", "a: the time of bar 3 of 3 is not after the one before"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Trading(write(tmp_path, "a.csv", text))


def test_what_is_wrong_is_told_of_all_files_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "")
    both = GOOD.replace("time", "asset,time").replace("\n1,", "\nx,1,").replace("\n2,", "\ny,2,")
    write(tmp_path, "b.csv", both.replace("12", "-12"))
    with pytest.raises(ConfigError) as error:
        read_bars(tmp_path)
    found = error.value.problems
    assert [problem.split(": ")[1].split()[0] for problem in found] == ["it", "x", "x", "y"]


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00\x9f")
    with pytest.raises(ConfigError, match="cannot be read as CSV in UTF-8"):
        read_bars(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.csv does not exist"):
        read_bars(tmp_path / "gone.csv")
    with pytest.raises(ConfigError, match=r"has no \.csv file"):
        read_bars(tmp_path)
    with pytest.raises(ConfigError, match="No file of bars was given"):
        read_bars([])


def test_two_files_of_one_asset_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", GOOD)
    with pytest.raises(ConfigError, match="2 assets are named a; expected one of each"):
        read_bars([path, path])


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"close": np.ones((2, 1))}, "close has the shape (2, 1); expected (3, 1)"),
        ({"names": ("a", "b")}, "open has the shape (3, 1); expected (3, 2)"),
        ({"time": np.ones((3, 1))}, "the times have the shape (3, 1)"),
        ({"names": ()}, "There are 0 assets"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        replaced(bars_of([[1.0]] * 3, [[1.0]] * 3), **columns)
