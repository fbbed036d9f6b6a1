"""Kernels run on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton


@pytest.fixture
def triton() -> None:
    """The test runs kernels, on the GPU or in the interpreter."""
    pytest.importorskip("triton", reason="needs Triton, which there is for Linux alone")
