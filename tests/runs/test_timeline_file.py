"""The timeline on disk: no second is lost, and it is never large; whatever happens to the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.runs.folder import TIMELINE_NAME, RunFolder
from stoker.runs.timeline import (
    MOST_CELLS,
    TimelineFile,
    cell_width,
    coarsened,
    join,
    read_timeline,
)
from stoker.types import Stretch

LEARNER = ("wait", "env", "inference", "store", "update", "log", "eval", "save")
COLLECTOR = ("env", "inference", "store", "wait")
GPU = ("busy", "sm_active", "memory_used_gib", "power_w")
HOST = ("cpu", "memory_used_gib")
WEEK_S = 7 * 24 * 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def stretch(at: float, seconds: float = 0.25, **gpu: float) -> Stretch:
    return Stretch(at, seconds, {"learner": {"env": seconds}}, gpu, {})


def rich(at: float, seconds: float) -> Stretch:
    """With every figure there is, of many digits."""
    learner = dict.fromkeys(LEARNER, seconds / len(LEARNER))
    collector = dict.fromkeys(COLLECTOR, seconds / len(COLLECTOR))
    threads = {"learner": learner, "collector": collector}
    return Stretch(at, seconds, threads, dict.fromkeys(GPU, 100 / 3), dict.fromkeys(HOST, 200 / 3))


def every(seconds: float, step: float, start: float = 0.0) -> Iterator[Stretch]:
    for number in range(round(seconds / step)):
        yield rich(start + number * step, step)


def test_what_was_written_is_read(folder: RunFolder) -> None:
    written = [stretch(0.0, busy=0.5), stretch(0.25), stretch(0.5, busy=0.0)]
    file = TimelineFile(folder)
    file.add(written)
    assert read_timeline(folder.path) == written[:2]  # the last cell is not over
    file.close()
    assert read_timeline(folder.path) == written


def test_joined_seconds_add_up_and_figures_are_means_where_they_are_known() -> None:
    first = Stretch(4.0, 1.0, {"learner": {"env": 1.0}}, {"busy": 1.0, "power_w": 300.0}, {})
    second = Stretch(5.0, 3.0, {"learner": {"env": 1.0, "update": 2.0}}, {"busy": 0.2}, {"cpu": 1})
    assert join([first, second]) == Stretch(
        4.0,
        4.0,
        {"learner": {"env": 2.0, "update": 2.0}},
        {"busy": pytest.approx(0.4), "power_w": 300.0},
        {"cpu": 1},
    )


def test_a_week_is_as_small_as_a_day_and_no_second_of_it_is_lost(folder: RunFolder) -> None:
    file = TimelineFile(folder)
    stretches = [*every(900.0, 0.25), *every(WEEK_S - 900.0, 60.0, start=900.0)]
    for first in range(0, len(stretches), 25):
        file.add(stretches[first : first + 25])
    file.close()
    found = read_timeline(folder.path)
    assert len(found) <= MOST_CELLS
    assert len(found) > MOST_CELLS // 4
    assert (folder.path / TIMELINE_NAME).stat().st_size < 4 * 2**20
    assert sum(each.seconds for each in found) == pytest.approx(WEEK_S)
    spent = sum(sum(each.threads["learner"].values()) for each in found)
    assert spent == pytest.approx(WEEK_S, rel=1e-4)
    assert [each.at for each in found] == sorted({each.at for each in found})
    assert [path.name for path in folder.path.iterdir() if ".tmp" in path.name] == []


def test_no_moment_of_a_long_run_has_a_large_file(folder: RunFolder) -> None:
    """The most lines that cells of one width can come to, each as long as lines become."""
    file = TimelineFile(folder)
    width = cell_width(0.0)
    file.add(rich((number + 0.5) * width, width) for number in range(MOST_CELLS))
    file.close()
    assert len(read_timeline(folder.path)) == MOST_CELLS
    assert (folder.path / TIMELINE_NAME).stat().st_size < 4 * 2**20


def test_cells_double() -> None:
    assert cell_width(0.0) == cell_width(0.25 * MOST_CELLS - 1) == 0.25
    assert cell_width(0.25 * MOST_CELLS) == 0.5
    assert WEEK_S / MOST_CELLS < cell_width(WEEK_S) <= 2 * WEEK_S / MOST_CELLS


def test_a_reading_that_came_late_stands_as_long_as_it_was(folder: RunFolder) -> None:
    file = TimelineFile(folder)
    file.add([stretch(0.0), stretch(0.25, 7.0), stretch(7.25)])
    file.close()
    assert [each.seconds for each in read_timeline(folder.path)] == [0.25, 7.0, 0.25]


def test_a_resumed_run_goes_on_and_forgets_what_came_after_its_checkpoint(
    folder: RunFolder,
) -> None:
    file = TimelineFile(folder)
    file.add(stretch(number / 4) for number in range(100))
    file.close()
    again = TimelineFile(folder, before_s=5.0)
    again.add([stretch(5.0, busy=0.5)])
    again.close()
    found = read_timeline(folder.path)
    assert [each.at for each in found] == pytest.approx([number / 4 for number in range(21)])
    assert found[-1].gpu == {"busy": 0.5}


def test_a_new_run_does_not_read_what_another_left(folder: RunFolder) -> None:
    (folder.path / TIMELINE_NAME).write_text('{"at":0}\n')
    file = TimelineFile(folder)
    file.close()
    assert read_timeline(folder.path) == []


def test_torn_and_foreign_lines_are_passed_over_and_gone_after_a_resume(folder: RunFolder) -> None:
    file = TimelineFile(folder)
    file.add([stretch(0.0), stretch(0.25)])
    file.close()
    path = folder.path / TIMELINE_NAME
    good = path.read_bytes()
    bad = [
        b"[]",
        b"7",
        b'{"at":0.5}',
        b'{"at":0.5,"seconds":NaN,"threads":{},"gpu":{},"host":{}}',
        b'{"at":0.5,"seconds":0,"threads":{},"gpu":{},"host":{}}',
        b'{"at":0.5,"seconds":1,"threads":[],"gpu":{},"host":{}}',
        b'{"at":0.5,"seconds":1,"threads":{"learner":7},"gpu":{},"host":{}}',
        b'{"at":0.5,"seconds":1,"threads":{},"gpu":{"busy":true},"host":{}}',
        b'{"at":"0","seconds":1,"threads":{},"gpu":{},"host":{}}',
        b"\xff\xfe",
        b'{"at":0.5,"sec',
    ]
    path.write_bytes(good + b"\n".join(bad))
    assert read_timeline(folder.path) == [stretch(0.0), stretch(0.25)]
    again = TimelineFile(folder, before_s=0.5)
    again.add([stretch(0.5)])
    again.close()
    assert [json.loads(line)["at"] for line in path.read_bytes().splitlines()] == [0.0, 0.25, 0.5]


def test_a_file_of_absurd_size_is_not_read(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TimelineFile(folder)
    file.add([stretch(0.0)])
    file.close()
    monkeypatch.setattr("stoker.runs.timeline._MOST_BYTES", 10)
    assert read_timeline(folder.path) == []


def test_a_full_disk_is_told_and_nothing_is_lost_once_there_is_room(small_disk: Any) -> None:
    folder = RunFolder.create(small_disk.path, "run")
    now = [0.0]
    file = TimelineFile(folder, clock=lambda: now[0])
    file.add([stretch(0.0), stretch(0.25)])
    ballast = small_disk.fill()
    file.add(stretch(0.5 + number / 4) for number in range(1000))
    assert file.trouble is not None
    assert "No space left" in file.trouble
    assert str(folder.path / TIMELINE_NAME) in file.trouble
    ballast.unlink()
    now[0] = 1000.0
    file.add([stretch(250.5)])
    assert file.trouble is None
    file.close()
    found = read_timeline(folder.path)
    assert sum(each.seconds for each in found) == pytest.approx(250.75)


def test_a_full_disk_when_cells_are_joined_keeps_what_was_there(small_disk: Any) -> None:
    folder = RunFolder.create(small_disk.path, "run")
    now = [0.0]
    file = TimelineFile(folder, clock=lambda: now[0])
    file.add(stretch(float(second), 1.0) for second in range(400))
    before = read_timeline(folder.path)
    ballast = small_disk.fill()
    file.add(stretch(float(second), 1.0) for second in range(400, 2000))
    assert file.trouble is not None
    assert read_timeline(folder.path)[: len(before)] == before
    ballast.unlink()
    now[0] = 1000.0
    file.close()
    assert file.trouble is None
    assert sum(each.seconds for each in read_timeline(folder.path)) == pytest.approx(2000.0)


def test_a_run_that_was_deleted_is_no_error(folder: RunFolder) -> None:
    file = TimelineFile(folder)
    (folder.path / "checkpoints").rmdir()
    folder.path.rmdir()
    file.add([stretch(0.0), stretch(0.25)])
    file.close()
    assert file.trouble is not None


def test_coarsening_keeps_order_and_time() -> None:
    fine = [stretch(number / 4) for number in range(100)]
    coarse = coarsened(fine, 2.0)
    assert len(coarse) == 13
    assert sum(each.seconds for each in coarse) == pytest.approx(25.0)
