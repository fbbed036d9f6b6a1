from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from stoker.runs.events import EventFile, _checksum

Shown = Callable[[Path], dict[str, list[tuple[int, float]]]]


def written(folder: Path) -> Path:
    (path,) = folder.glob("events.*")
    return path


def records(path: Path) -> Iterator[Event]:
    """All that is in a file, which must be whole."""
    content = path.read_bytes()
    while content:
        end = 12 + int.from_bytes(content[:8], "little")
        assert len(content) >= end + 4, "the file ends amid a record"
        yield Event.FromString(content[12:end])
        content = content[end + 4 :]


def fill(events: EventFile, *steps: int) -> None:
    for step in steps:
        events.add(step, {"a": float(step)})


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
    assert all(abs(one.wall_time - time.time()) < 60 for one in records(written(tmp_path)))
    events.close()


def test_a_record_that_was_cut_off_goes_before_the_next(tmp_path: Path, shown: Shown) -> None:
    events = EventFile(tmp_path)
    fill(events, 1)
    size = written(tmp_path).stat().st_size
    fill(events, 2)
    whole = written(tmp_path).read_bytes()
    for end in range(size, len(whole)):
        events.close()
        written(tmp_path).write_bytes(whole[:end])
        fill(events, 3)
        assert [one.step for one in records(written(tmp_path))] == [0, 1, 3]
    assert shown(tmp_path) == {"a": [(1, 1.0), (3, 3.0)]}
    events.close()


def test_on_a_full_disk_there_are_whole_records_alone(small_disk: Any, shown: Shown) -> None:
    """Also while it is full: whoever reads along glues what comes next to a part of a record."""
    events = EventFile(small_disk.path)
    fill(events, 0)
    ballast = small_disk.fill()
    fill(events, *range(1, 200))  # past the end of the page that the file already has
    assert events.trouble is not None
    kept = [one.step for one in records(written(small_disk.path))][1:]
    assert kept == list(range(len(kept)))
    assert len(kept) < 200
    ballast.unlink()
    fill(events, 500)
    assert events.trouble is None
    assert shown(small_disk.path)["a"][-2:] == [(kept[-1], float(kept[-1])), (500, 500.0)]
    events.close()


def test_forgetting_is_told_before_the_next_record_and_once(tmp_path: Path, shown: Shown) -> None:
    events = EventFile(tmp_path)
    fill(events, 1, 2, 3)
    events.forget_after(1)
    events.forget_after(2)
    assert len(shown(tmp_path)["a"]) == 3
    events.add(2, {"a": 20.0})
    events.add(3, {"a": 30.0})
    assert shown(tmp_path) == {"a": [(1, 1.0), (2, 20.0), (3, 30.0)]}
    assert [one.HasField("session_log") for one in records(written(tmp_path))].count(True) == 1
    events.close()


def test_an_earlier_session_is_forgotten_though_the_disk_failed_at_first(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = EventFile(tmp_path)
    fill(first, 1, 2, 3)
    first.close()
    second = EventFile(tmp_path)
    second.forget_after(1)
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    fill(second, 2)
    assert second.trouble is not None
    assert "No such file" in second.trouble
    tmp_path.with_name("elsewhere").rename(tmp_path)
    second.add(3, {"a": 30.0})
    assert second.trouble is None
    assert shown(tmp_path) == {"a": [(1, 1.0), (3, 30.0)]}
    second.close()


def test_a_file_that_was_deleted_begins_anew_and_hides_what_it_hid(
    tmp_path: Path, shown: Shown
) -> None:
    first = EventFile(tmp_path)
    fill(first, 1, 2, 3)
    first.close()
    earlier = written(tmp_path)
    second = EventFile(tmp_path)
    second.forget_after(1)
    fill(second, 2)
    next(path for path in tmp_path.iterdir() if path != earlier).unlink()
    second.add(4, {"a": 40.0})
    assert shown(tmp_path) == {"a": [(1, 1.0), (4, 40.0)]}
    second.close()


def test_files_of_one_second_are_read_in_the_order_they_were_made(
    tmp_path: Path, shown: Shown
) -> None:
    for step in range(12):
        events = EventFile(tmp_path)
        events.forget_after(step - 1)
        fill(events, step)
        events.close()
    assert len(list(tmp_path.iterdir())) == 12
    assert shown(tmp_path) == {"a": [(step, float(step)) for step in range(12)]}


def test_a_file_of_another_name_does_not_matter(tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.x.host"
    other.touch()
    events = EventFile(tmp_path)
    fill(events, 1)
    (ours,) = set(tmp_path.iterdir()) - {other}
    assert abs(int(ours.name.split(".")[3]) - time.time()) < 60
    assert events.trouble is None
    events.close()


@pytest.mark.parametrize("value", [1e39, -1e39, 5e-324])
def test_what_float32_cannot_tell_is_no_error(tmp_path: Path, shown: Shown, value: float) -> None:
    events = EventFile(tmp_path)
    events.add(1, {"a": value})
    assert events.trouble is None
    assert shown(tmp_path)["a"][0][0] == 1
    events.close()


def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path, shown: Shown) -> None:
    events = EventFile(tmp_path)
    events.add(1, {"caf\udce9": 1.0, "café": 2.0})
    assert events.trouble is None
    assert shown(tmp_path) == {"caf?": [(1, 1.0)], "café": [(1, 2.0)]}
    events.close()


def test_what_protobuf_raises_is_trouble_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> Any:
        raise TypeError("Descriptors cannot be created directly.")

    events = EventFile(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(event_pb2, "Event", refuse)
        fill(events, 1)
    assert events.trouble is not None
    assert "TypeError: Descriptors cannot be created directly" in events.trouble
    fill(events, 2)
    assert events.trouble is None
    events.close()
