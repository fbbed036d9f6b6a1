from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.runs.strict_json import dumps, loads, write_atomically


def test_non_finite_numbers_become_null_at_any_depth() -> None:
    text = dumps({"a": math.nan, "b": [math.inf, (-math.inf, 1.5)], "c": np.float32("nan")})
    assert json.loads(text) == {"a": None, "b": [None, [None, 1.5]], "c": None}


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(-3), -3),
        (np.bool_(True), True),
        (np.array(4), 4),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(2.0).bfloat16(), 2.0),
        (torch.tensor(7), 7),
        (torch.tensor(math.nan), None),
    ],
)
def test_numpy_and_torch_scalars_are_numbers(scalar: Any, plain: Any) -> None:
    assert json.loads(dumps([scalar])) == [plain]


@pytest.mark.parametrize("value", [{1: 2}, {None: 1}, object(), np.zeros(1), b"x", {1, 2}, 1j])
def test_what_json_has_no_word_for_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="JSON"):
        dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        '{"a":1,"a":2}',
        "",
        "{",
        "1 2",
        b"\xff",
        "[" * 10**5,
    ],
)
def test_what_is_not_strict_json_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (each has its own words)
        loads(text)


def test_what_was_written_is_read_back() -> None:
    value = {"a": [1, 2.5, "ü\u2028", None, True], "big": 2**200, "tiny": 5e-324}
    assert loads(dumps(value)) == value


def test_a_file_is_replaced_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_failed_write_keeps_the_old_file(small_disk: Any) -> None:
    path = small_disk.path / "status.json"
    write_atomically(path, "old")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"x" * 2_000_000)
    assert path.read_text() == "old"
    assert os.listdir(small_disk.path) == ["status.json"]
