"""Which GPU jobs will train on."""

from __future__ import annotations

import pytest

from stoker.jobs.chip import told, used_by_cuda
from stoker.monitor.records import GpuSample, Series
from stoker.monitor.sampler import Gpu

ZERO, ONE = (Gpu(number, "H200", f"GPU-{number}{number}", Series()) for number in (0, 1))


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [
        (None, ZERO),
        ("1", ONE),
        ("1,0", ONE),
        ("GPU-11", ONE),
        ("", None),
        ("-1", None),
        ("7", None),
    ],
)
def test_it_is_the_first_that_cuda_may_see(visible: str | None, gpu: Gpu | None) -> None:
    assert used_by_cuda([ZERO, ONE], visible) is gpu


def test_there_may_be_none() -> None:
    assert used_by_cuda([], None) is None


def test_what_is_unknown_is_not_told() -> None:
    assert told(None) == {}
    assert told(GpuSample(1.0, busy=0.5, temperature_c=60.0)) == {"busy": 0.5}
