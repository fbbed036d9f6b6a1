"""Windows and means, with numbers one can check in the head."""

from __future__ import annotations

import itertools

import pytest

from stoker.monitor.records import GpuSample, HostSample, Series, mean


def series_of(*busy: float | None, most: int = 100) -> Series[GpuSample]:
    """A sample a second, from second 0 on."""
    series: Series[GpuSample] = Series(most)
    for second, share in enumerate(busy):
        series.add(GpuSample(second, busy=share))
    return series


def test_a_window_takes_what_came_after_its_beginning_up_to_its_end() -> None:
    series = series_of(0.1, 0.2, 0.4, 0.6, 0.9)
    found = series.between(1.0, 3.0)
    assert found is not None
    assert found.busy == pytest.approx(0.5)  # seconds 2 and 3, not 1
    assert found.at == 3
    assert series.between(1.2, 1.8) is None


def test_windows_that_follow_each_other_see_every_sample_once() -> None:
    series = series_of(*(float(second) for second in range(10)))
    edges = (-1.0, 2.0, 2.5, 7.0, 9.0)
    found = [series.between(a, b) for a, b in itertools.pairwise(edges)]
    assert [None if one is None else one.busy for one in found] == [1.0, None, 5.0, 8.5]


def test_only_the_newest_samples_are_kept() -> None:
    series = series_of(*(float(second) for second in range(10)), most=3)
    found = series.between(-1.0, 100.0)
    assert found is not None
    assert found.busy == 8.0
    assert series.latest == GpuSample(9, busy=9.0)


def test_what_is_unknown_has_no_part_in_a_mean_and_none_is_not_zero() -> None:
    found = mean([GpuSample(0, busy=0.5), GpuSample(1), GpuSample(2, busy=1.0, power_w=100.0)])
    assert found == GpuSample(2, busy=0.75, power_w=100.0)
    assert mean([GpuSample(0), GpuSample(1)]) == GpuSample(1)
    assert Series[GpuSample]().latest is None


def test_words_are_those_of_any_sample() -> None:
    hot = [("power cap",), (), None, ("heat, by the driver", "power cap")]
    found = mean([GpuSample(t, throttle=words) for t, words in enumerate(hot)])
    assert found is not None
    assert found.throttle == ("heat, by the driver", "power cap")
    calm = mean([GpuSample(0, throttle=()), GpuSample(1, throttle=None)])
    assert calm is not None
    assert calm.throttle == ()


def test_each_core_has_its_own_mean_and_one_that_came_later_spoils_none() -> None:
    rows = [(0.9,), (0.0, 1.0), (0.5, 0.5)]
    found = mean([HostSample(t, cores=cores) for t, cores in enumerate(rows)])
    assert found is not None
    assert found.cores == (0.25, 0.75)
