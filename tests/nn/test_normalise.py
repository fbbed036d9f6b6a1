"""Running moments against NumPy over everything seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker.nn.normalise import RunningMoments, shrunk


def update(moments: RunningMoments, rows: np.ndarray, valid: np.ndarray | None = None) -> None:
    everyone = np.ones(len(rows), bool)
    moments.update(torch.from_numpy(rows), torch.from_numpy(everyone if valid is None else valid))


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[np.ndarray, np.ndarray]]:
    """A few batches of rows of width 2, and which of their rows count."""
    made = []
    for _ in range(draw(st.integers(1, 5))):
        n = draw(st.integers(1, 8))
        rows = draw(hnp.arrays(np.float32, (n, 2), elements=st.floats(-100, 100, width=32)))
        made.append((rows, draw(hnp.arrays(bool, n))))
    return made


@settings(max_examples=80, deadline=None)
@given(batches())
def test_moments_are_those_of_all_valid_rows_seen(
    seen: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    moments = RunningMoments(2)
    for rows, valid in seen:
        update(moments, rows, valid)
    counted = np.concatenate([rows[valid] for rows, valid in seen]).astype(np.float64)
    assert moments.count == len(counted)
    if len(counted):
        np.testing.assert_allclose(moments.mean, counted.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(moments.variance, counted.var(0), rtol=1e-9, atol=1e-9)
    else:
        np.testing.assert_array_equal(moments.mean, [0, 0])
        np.testing.assert_array_equal(moments.variance, [1, 1])


def test_invalid_rows_may_hold_anything() -> None:
    moments = RunningMoments(1)
    rows = np.array([[1.0], [np.nan], [3.0], [np.inf]], np.float32)
    update(moments, rows, np.array([True, False, True, False]))
    assert moments.mean == 2.0
    assert moments.variance == 1.0


def test_moments_are_kept_in_float64() -> None:
    """A spread of 0.1 around a hundred million: float32 could not tell the rows apart."""
    moments = RunningMoments(1)
    rows = 1e8 + 0.1 * np.random.default_rng(0).standard_normal((400, 1))
    for part in np.split(rows, 8):
        update(moments, part)
    kept = (moments.mean, moments.variance, moments.count)
    assert all(buffer.dtype == torch.float64 for buffer in kept)
    assert float(moments.mean) == pytest.approx(rows.mean(), rel=1e-12)
    assert float(moments.variance) == pytest.approx(rows.var(), rel=1e-4)


def test_a_row_still_counts_after_a_trillion_others() -> None:
    """Past 2^24 rows a float32 count would stand still."""
    moments = RunningMoments(1)
    moments.count.fill_(1e12)
    update(moments, np.full((1000, 1), 5e6, np.float32))
    assert float(moments.count) == 1e12 + 1000
    assert float(moments.mean) == pytest.approx(5e6 * 1000 / (1e12 + 1000), rel=1e-9)


def test_standardise_gives_mean_0_and_deviation_1() -> None:
    moments = RunningMoments(2)
    rows = np.random.default_rng(0).normal([3, -50], [0.1, 20], (1000, 2)).astype(np.float32)
    update(moments, rows)
    scaled = moments.standardise(torch.from_numpy(rows))
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled.mean(0), [0, 0], atol=1e-4)
    np.testing.assert_allclose(scaled.std(0, unbiased=False), [1, 1], rtol=1e-4)


def test_both_scalings_cut_off_at_ten_deviations() -> None:
    moments = RunningMoments(1)
    update(moments, np.array([[1.0], [3.0]], np.float32))  # mean 2, deviation 1
    rows = torch.tensor([[1e9], [-1e9], [4.0]])
    torch.testing.assert_close(moments.standardise(rows), torch.tensor([[10.0], [-10.0], [2.0]]))
    expected = torch.tensor([[10.0], [-10.0], [4.0]])
    torch.testing.assert_close(shrunk(rows, moments.scale), expected)


def test_before_the_first_row_nothing_is_scaled() -> None:
    rows = torch.tensor([[1.5], [-2.5]])
    torch.testing.assert_close(RunningMoments(1).standardise(rows), rows)


def test_a_constant_column_stays_at_zero() -> None:
    moments = RunningMoments(1)
    for _ in range(3):
        update(moments, np.full((7, 1), 0.1, np.float32))
    assert moments.standardise(torch.full((1, 1), 0.1)) == 0.0


def test_moments_travel_with_the_state_dict() -> None:
    first, second = RunningMoments(2), RunningMoments(2)
    update(first, np.arange(8, dtype=np.float32).reshape(4, 2))
    second.load_state_dict(first.state_dict())
    for moments in (first, second):
        update(moments, np.ones((3, 2), np.float32))
    for mine, theirs in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(mine, theirs)
