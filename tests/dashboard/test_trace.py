"""The trace: valid Trace Event JSON, in which every second of every phase stands once."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from made_runs import make_run, stretches

from stoker.dashboard.trace import spans, trace
from stoker.runs.reader import read_run
from stoker.runs.strict_json import dumps
from stoker.types import Stretch


def test_every_event_is_one_that_viewers_know(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path, name)) for name in ("before", "after")]
    events = json.loads(dumps(trace(runs)))["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str)
        assert event["pid"] in (1, 2)
        if event["ph"] == "M":
            assert set(event["args"]) == {"name"}
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] >= 0
            assert event["tid"] in (1, 2)
        else:
            assert event["ph"] == "C"
            (value,) = event["args"].values()
            assert isinstance(value, int | float)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named == {
        (1, 0): "before",
        (1, 1): "learner",
        (1, 2): "collector",
        (2, 0): "after",
        (2, 1): "learner",
        (2, 2): "collector",
    }


def test_phases_last_as_long_as_they_did_and_do_not_overlap(tmp_path: Path) -> None:
    events = trace([read_run(make_run(tmp_path))])["traceEvents"]
    spent: defaultdict[str, float] = defaultdict(float)
    ends: dict[int, int] = {}
    for event in events:
        if event["ph"] == "X":
            spent[event["name"]] += event["dur"] / 1e6
            assert event["ts"] >= ends.get(event["tid"], 0)
            ends[event["tid"]] = event["ts"] + event["dur"]
    assert spent == pytest.approx({"wait": 40.0, "update": 60.0, "env": 50.0})


def test_the_machine_is_beside_speed_and_reward(tmp_path: Path) -> None:
    events = trace([read_run(make_run(tmp_path))])["traceEvents"]
    counters = {event["name"]: event["args"] for event in events if event["ph"] == "C"}
    assert counters == {
        "GPU busy, %": {"GPU busy, %": 50.0},
        "SM active, %": {"SM active, %": 25.0},
        "GPU memory, GiB": {"GPU memory, GiB": 20.0},
        "GPU power, W": {"GPU power, W": 300.0},
        "CPU, %": {"CPU, %": 80.0},
        "reward": {"reward": 500.0},
        "steps/s": {"steps/s": 200.0},
    }


def test_what_is_unknown_has_no_counter(tmp_path: Path) -> None:
    run = make_run(tmp_path, timeline=stretches(gpu=False))
    names = {e["name"] for e in trace([read_run(run)])["traceEvents"] if e["ph"] == "C"}
    assert names == {"CPU, %", "reward", "steps/s"}


def test_a_phase_that_goes_on_is_one_span() -> None:
    stepping = [Stretch(float(at), 1.0, {"learner": {"env": 1.0}}, {}, {}) for at in range(3)]
    learning = Stretch(3.0, 1.0, {"learner": {"env": 0.25, "update": 0.5}}, {}, {})
    after = Stretch(5.0, 1.0, {"learner": {"update": 1.0}}, {}, {})
    assert list(spans([*stepping, learning, after], "learner")) == [
        ("env", 0.0, 3.25),
        ("update", 3.25, 3.75),
        ("update", 5.0, 6.0),
    ]
    assert list(spans(stepping, "collector")) == []
