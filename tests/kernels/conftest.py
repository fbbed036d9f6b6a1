"""Kernels run on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter prepares its language once a launch, not at every call in a kernel.

    It looks through all of `triton.language` whenever one function of a kernel calls another,
    which is half of the time that kernels take in it. What it finds from the second time on has
    been replaced already.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or not importlib.util.find_spec("triton"):
        yield
        return
    from triton.runtime import interpreter

    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared: set[int] = set()

    def prepare_once(function: Any) -> Any:
        surroundings = id(function.__globals__)
        if surroundings in prepared:
            return None
        prepared.add(surroundings)
        return prepare(function)

    def launched(*arguments: Any, **settings: Any) -> Any:
        prepared.clear()
        try:
            return launch(*arguments, **settings)
        finally:
            prepared.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        patch.setattr(interpreter.GridExecutor, "__call__", launched)
        yield


@pytest.fixture
def triton() -> None:
    """The test runs kernels, on the GPU or in the interpreter."""
    pytest.importorskip("triton", reason="needs Triton, which there is for Linux alone")
