"""Captures for which memory runs out are made again. No GPU: what records a graph is pretended."""

from __future__ import annotations

import contextlib
import warnings
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from stoker.errors import CaptureAgainError
from stoker.learn.executor import Steps
from stoker.learn.whole import Whole
from stoker.train.memory import fitted
from stoker.types import Minibatch


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[MagicMock]:
    """Every graph that is made; capturing runs what is captured, and replaying does nothing."""
    made: list[MagicMock] = []

    def graph() -> MagicMock:
        made.append(MagicMock())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *given, **named: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    for name in ("current_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    return made


def test_a_lesson_that_asks_for_less_is_captured_again(graphs: list[MagicMock]) -> None:
    calls: list[Tensor] = []
    random = torch.Generator()

    def lesson() -> int:
        calls.append(torch.rand((), generator=random))
        if len(calls) in (2, 3):
            raise CaptureAgainError
        return len(calls)

    run = Whole(captures=True)(lesson, random)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [run(), run(), run(), run()] == [1, 4, 4, 4]
    assert [graph.replay.call_count for graph in graphs] == [0, 0, 3]
    assert calls[1] == calls[2] == calls[3], "a failed capture has drawn nothing"


def make_rows() -> Minibatch:
    column = torch.zeros(4)
    return Minibatch({"obs": column}, column, None, *[column] * 5, column == 0)


@pytest.mark.parametrize("fails", [1, 2, 3, 4, 5])
def test_an_update_that_runs_out_is_made_again_and_counted_once(
    fails: int, graphs: list[MagicMock]
) -> None:
    """Three warm up, the fourth is captured, and is that which the fifth replays."""
    tried, smaller = 0, list[str]()

    def step(rows: Minibatch, index: Tensor) -> None:
        nonlocal tried
        tried += 1
        if tried == fails:
            raise torch.OutOfMemoryError("short")

    run: Any = Steps(step, captures=True).over(make_rows())
    for number in range(5):
        fitted(partial(run, torch.tensor([number])), smaller.append)
    assert smaller == (["short"] if fails <= 4 else [])
    assert tried == 4 + len(smaller)
    assert [graph.replay.call_count for graph in graphs][-1] == 2
    assert len(graphs) == (2 if fails == 4 else 1)
