from __future__ import annotations

import math
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.runs.folder import RunFolder
from stoker.runs.reader import read_metrics
from stoker.runs.recorder import Recorder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def recorded_steps(run: RunFolder) -> list[int]:
    return [entry["env_steps"] for entry in read_metrics(run.path)]


Shown = Callable[[Path], dict[str, list[tuple[int, float]]]]


def test_metrics_go_to_both_files_without_the_non_finite(run: RunFolder, shown: Shown) -> None:
    recorder = Recorder(run, wall_s_before=100.0)
    recorder.record(10, {"a": 1.5, "b": math.nan, "c": math.inf, "env_steps": 7.0})
    recorder.record(20, {"a": 2.5, "b": 3.0})
    assert recorded_steps(run) == [10, 20], "lines must be readable before the recorder closes"
    recorder.close()
    first, second = read_metrics(run.path)
    assert first.keys() == {"env_steps", "wall_s", "a"}
    assert (first["a"], second["a"], second["b"]) == (1.5, 2.5, 3.0)
    assert 100.0 <= first["wall_s"] <= second["wall_s"] < 160.0
    assert shown(run.path) == {"a": [(10, 1.5), (20, 2.5)], "b": [(20, 3.0)]}
    assert recorder.trouble is None


def test_resuming_drops_what_lies_past_the_step_and_a_torn_line(
    run: RunFolder, shown: Shown
) -> None:
    recorder = Recorder(run)
    for step in (1, 2, 3, 4):
        recorder.record(step, {"a": float(step)})
    recorder.close()
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"env_steps":5,"a"')
    resumed = Recorder(run)
    resumed.truncate_after(2)
    assert recorded_steps(run) == [1, 2]
    resumed.record(3, {"a": 30.0})
    resumed.close()
    assert recorded_steps(run) == [1, 2, 3]
    assert (run.path / "metrics.jsonl").read_text().count("\n") == 3
    assert shown(run.path) == {"a": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_rolling_back_forgets_too(run: RunFolder, shown: Shown) -> None:
    recorder = Recorder(run)
    for step in (1, 2, 3):
        recorder.record(step, {"a": float(step)})
    recorder.truncate_after(1)
    recorder.record(2, {"a": 20.0})
    recorder.close()
    assert recorded_steps(run) == [1, 2]
    assert shown(run.path) == {"a": [(1, 1.0), (2, 20.0)]}


def test_a_torn_line_is_replaced_by_the_next(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_text('{"env_steps":1}\n{"env_steps":2,"long":' + "1" * 500)
    recorder = Recorder(run)
    recorder.record(3, {"a": 1.0})
    recorder.close()
    assert recorded_steps(run) == [1, 3]
    assert (run.path / "metrics.jsonl").read_text().endswith("}\n")


def test_a_full_disk_is_warned_of_once_and_over_when_there_is_room(
    small_disk: Any, shown: Shown
) -> None:
    run = RunFolder.create(small_disk.path, "run")
    recorder = Recorder(run)
    recorder.record(0, {"a": 0.0})
    ballast = small_disk.fill()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step in range(1, 200):  # past the end of the pages both files already have
            recorder.record(step, {"a": float(step), "b": 1.0})
    ours = [
        str(warning.message) for warning in warned if "Training goes on" in str(warning.message)
    ]
    assert len(ours) == 1
    assert "No space left on device" in ours[0]
    assert recorder.trouble is not None
    assert "No space left on device" in recorder.trouble
    kept = recorded_steps(run)
    assert kept == list(range(len(kept))), "what had found room must stay, whole and in order"
    assert len(kept) < 200
    ballast.unlink()
    recorder.record(500, {"a": 500.0})
    assert recorder.trouble is None
    recorder.record(501, {"a": 501.0})
    recorder.close()
    assert recorded_steps(run) == [*kept, 500, 501]
    assert shown(run.path)["a"][-2:] == [(500, 500.0), (501, 501.0)]


def test_trouble_with_events_alone_is_told_and_warned_of_once(run: RunFolder) -> None:
    recorder = Recorder(run)
    recorder.record(1, {"a": 1.0})
    (events,) = run.path.glob("events.*")
    events.unlink()
    events.mkdir()
    with pytest.warns(UserWarning, match=r"Cannot write .*events.*Training goes on"):
        recorder.record(2, {"a": 2.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.record(3, {"a": 3.0})
    assert recorder.trouble is not None
    recorder.close()
    assert recorded_steps(run) == [1, 2, 3]


def test_a_folder_that_is_gone_is_trouble_and_no_error(run: RunFolder) -> None:
    (run.path / "checkpoints").rmdir()
    run.path.rmdir()
    recorder = Recorder(run)
    with pytest.warns(UserWarning, match=r"Cannot write .*No such file.*Training goes on"):
        recorder.record(1, {"a": 1.0})
    recorder.truncate_after(0)
    recorder.close()
    assert recorder.trouble is not None
    assert not run.path.exists()


def test_a_folder_deleted_meanwhile_is_trouble_and_is_not_made_anew(run: RunFolder) -> None:
    recorder = Recorder(run)
    recorder.record(1, {"a": 1.0})
    shutil.rmtree(run.path)
    with pytest.warns(UserWarning, match=r"Cannot write .*No such file.*Training goes on"):
        recorder.record(2, {"a": 2.0})
    recorder.truncate_after(1)
    recorder.record(2, {"a": 2.0})
    assert not run.path.exists()
    run.path.mkdir()
    recorder.record(3, {"a": 3.0})
    assert recorder.trouble is None
    assert recorded_steps(run) == [3]
    shutil.rmtree(run.path)
    recorder.record(4, {"a": 4.0})
    recorder.close()
    assert recorder.trouble is not None
    assert not run.path.exists()


def test_events_do_not_make_the_folder_anew(run: RunFolder) -> None:
    """As when the folder goes between the line and its events."""
    recorder = Recorder(run)
    shutil.rmtree(run.path)
    recorder._events.add(1, {"a": 1.0})
    assert recorder._events.trouble is not None
    assert "No such file" in recorder._events.trouble
    assert not run.path.exists()


def test_without_tensorboard_one_warning_and_the_lines_go_on(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    recorder = Recorder(run)
    with pytest.warns(UserWarning, match="pip install tensorboard"):
        recorder.record(1, {"a": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.record(2, {"a": 1.0})
    recorder.close()
    assert recorded_steps(run) == [1, 2]
    assert recorder.trouble is None
    assert not list(run.path.glob("events.*"))
