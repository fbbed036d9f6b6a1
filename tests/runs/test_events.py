from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from stoker.runs.events import EventFile, _checksum

Shown = Callable[[Path], dict[str, list[tuple[int, float]]]]


@given(strategies.binary(max_size=300))
def test_checksums_are_those_of_tensorboard(content: bytes) -> None:
    assert int.from_bytes(_checksum(content), "little") == masked_crc32c(content)


def test_there_is_no_file_until_something_was_added(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    events.forget_after(3)
    events.close()
    assert not list(tmp_path.iterdir())


def test_what_was_added_is_shown_before_the_file_is_closed(tmp_path: Path, shown: Shown) -> None:
    events = EventFile(tmp_path)
    events.add(1, {"a": 1.0, "b": -2.5})
    events.add(3, {"a": 3.0})
    assert shown(tmp_path) == {"a": [(1, 1.0), (3, 3.0)], "b": [(1, -2.5)]}
    events.close()


def test_a_record_that_was_cut_off_goes_before_the_next(tmp_path: Path, shown: Shown) -> None:
    events = EventFile(tmp_path)
    for step in (1, 2):
        events.add(step, {"a": float(step)})
    events.close()
    whole = events.path.read_bytes()
    events.path.write_bytes(whole[:-5])
    events.add(3, {"a": 3.0})
    events.close()
    assert shown(tmp_path) == {"a": [(1, 1.0), (3, 3.0)]}


def test_forgetting_is_told_before_the_next_record_and_once(tmp_path: Path, shown: Shown) -> None:
    events = EventFile(tmp_path)
    for step in (1, 2, 3):
        events.add(step, {"a": float(step)})
    events.forget_after(1)
    assert len(shown(tmp_path)["a"]) == 3
    events.add(2, {"a": 20.0})
    size = events.path.stat().st_size
    events.add(3, {"a": 30.0})
    assert shown(tmp_path) == {"a": [(1, 1.0), (2, 20.0), (3, 30.0)]}
    assert events.path.stat().st_size - size < size / 3
    events.close()


def test_files_of_one_second_are_read_in_the_order_they_were_made(
    tmp_path: Path, shown: Shown
) -> None:
    for step in range(12):
        events = EventFile(tmp_path)
        events.forget_after(step - 1)
        events.add(step, {"a": float(step)})
        events.close()
    assert len(list(tmp_path.iterdir())) == 12
    assert shown(tmp_path) == {"a": [(step, float(step)) for step in range(12)]}


def test_a_file_of_another_name_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.x.host").touch()
    events = EventFile(tmp_path)
    events.add(1, {"a": 1.0})
    second = int(events.path.name.split(".")[3])
    assert abs(second - time.time()) < 60
    assert events.trouble is None
    events.close()


def test_trouble_is_told_and_over_with_the_next_that_is_written(
    tmp_path: Path, shown: Shown
) -> None:
    folder = tmp_path / "run"
    events = EventFile(folder)
    events.forget_after(0)
    events.add(1, {"a": 1.0})
    assert events.trouble is not None
    assert "No such file" in events.trouble
    folder.mkdir()
    events.add(2, {"a": 2.0})
    assert events.trouble is None
    assert shown(folder) == {"a": [(2, 2.0)]}
    events.close()


@pytest.mark.parametrize("value", [1e39, -1e39, 5e-324])
def test_what_float32_cannot_tell_is_no_error(tmp_path: Path, shown: Shown, value: float) -> None:
    events = EventFile(tmp_path)
    events.add(1, {"a": value})
    assert events.trouble is None
    assert shown(tmp_path)["a"][0][0] == 1
    events.close()
