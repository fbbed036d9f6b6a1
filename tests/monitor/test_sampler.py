"""The sampler by a clock of ours; then its thread, and what it costs."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fake_nvml
import pytest
from fake_nvml import FakeNvml

from stoker.monitor.sampler import Sampler


class Clock:
    """Stands until it is moved on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, **options: object) -> Sampler:
    sampler = Sampler(clock=clock, **options)  # type: ignore[arg-type]
    sampler.open()
    return sampler


def run(sampler: Sampler, clock: Clock, seconds: float) -> list[float]:
    """As the thread would, in no time; when it sampled."""
    ticks, end = [], clock.now + seconds
    while clock.now < end:
        ticks.append(clock.now)
        clock.now += max(sampler.tick(), 1e-6)
    return ticks


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_gpu_is_sampled_20_times_a_second_or_more(nvml: FakeNvml) -> None:
    clock = Clock()
    sampler = opened(clock)
    run(sampler, clock, 10.0)
    (gpu,) = sampler.gpus
    assert nvml.asked.count("nvmlDeviceGetUtilizationRates") >= 200
    found = gpu.series.between(100.0, 110.0)
    assert found is not None
    assert found.busy == pytest.approx(0.6)


def test_a_window_has_the_mean_of_that_time(nvml: FakeNvml) -> None:
    clock = Clock()
    sampler = opened(clock)
    for nvml.busy in (100, 40, 10):
        run(sampler, clock, 1.0)
    (gpu,) = sampler.gpus
    for began, busy in ((100.0, 1.0), (101.0, 0.4), (102.0, 0.1)):
        found = gpu.series.between(began + 0.1, began + 0.9)
        assert found is not None
        assert found.busy == pytest.approx(busy)


def test_each_gpu_has_a_series_of_its_own(nvml: FakeNvml) -> None:
    nvml.gpus = ["whole-0", "whole-1"]
    clock = Clock()
    sampler = opened(clock)
    run(sampler, clock, 1.0)
    assert [(gpu.number, gpu.name, gpu.uuid) for gpu in sampler.gpus] == [
        (0, "Fake whole-0", "GPU-whole-0"),
        (1, "Fake whole-1", "GPU-whole-1"),
    ]
    assert all(gpu.series.latest is not None for gpu in sampler.gpus)


def test_the_host_goes_on_when_nvml_disappears(nvml: FakeNvml, tmp_path: Path) -> None:
    clock = Clock()
    sampler = opened(clock, host=tmp_path)
    run(sampler, clock, 3.0)
    nvml.fails["*"] = fake_nvml.UNINITIALIZED
    with pytest.warns(UserWarning, match="no longer answers") as told:
        run(sampler, clock, 3.0)
    assert len(told) == 1
    (gpu,) = sampler.gpus
    assert gpu.series.latest is not None
    assert gpu.series.latest.busy is None
    assert sampler.host.latest is not None
    assert sampler.host.latest.at > 104.5
    assert sampler.host.latest.memory_total_gib is not None


def test_a_gpu_that_is_there_but_cannot_be_read_is_warned_about_once(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.warns(UserWarning, match="unknown: nvidia-ml-py is not installed") as told:
        sampler = opened(Clock(), uuid="whole-0")
    assert len(told) == 1
    assert sampler.gpus == ()
    assert sampler.tick() > 0


def test_a_machine_without_gpus_is_no_reason_to_warn(
    nvml: FakeNvml, recwarn: pytest.WarningsRecorder
) -> None:
    nvml.fails["nvmlInit"] = fake_nvml.LIBRARY_NOT_FOUND
    sampler = opened(Clock())
    assert sampler.trouble == "NVML cannot be used: NVML said 12"
    assert len(recwarn) == 0


def test_the_thread_samples_and_leaves_nothing_open(nvml: FakeNvml, tmp_path: Path) -> None:
    with Sampler(host=tmp_path) as sampler:
        wait_for(lambda: sampler.gpus and sampler.gpus[0].series.latest)
        wait_for(lambda: sampler.host.latest)
        assert nvml.open == 1
    assert (nvml.open, len(nvml.held)) == (0, 0)
    count = len(nvml.asked)
    time.sleep(0.15)
    assert len(nvml.asked) == count


@pytest.mark.filterwarnings("error")
def test_no_warning_ends_the_thread(nvml: FakeNvml, tmp_path: Path) -> None:
    with Sampler(host=tmp_path, host_every_s=0.05) as sampler:
        wait_for(lambda: sampler.gpus and sampler.gpus[0].series.latest)
        nvml.fails["*"] = fake_nvml.GPU_IS_LOST
        before = time.monotonic()
        wait_for(lambda: sampler.host.latest and sampler.host.latest.at > before + 0.2)


def test_measuring_imports_neither_torch_nor_a_screen() -> None:
    program = (
        "import sys, stoker.monitor.sampler; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'rich', 'pynvml')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_sampler_that_has_spent_too_much_rests_and_still_ends_at_once(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of processor time is more than three minutes' worth."""
    spent = iter([0.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(spent, 1.0))
    with Sampler() as sampler:
        wait_for(lambda: nvml.asked.count("nvmlDeviceGetUtilizationRates"))
        time.sleep(0.3)
        assert nvml.asked.count("nvmlDeviceGetUtilizationRates") == 1
        began = time.monotonic()
        sampler.close()
        assert time.monotonic() - began < 1.0


def test_a_sampler_that_spends_too_much_still_samples_between_rests(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock costs 5 ms: waking up must not put off the next sample for ever."""
    monkeypatch.setattr("stoker.monitor.sampler._CREDIT_S", 0.0)
    monkeypatch.setattr("stoker.monitor.sampler._MOST_SHARE", 0.5)
    spent = itertools.count(0.0, 0.005)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    with Sampler():
        wait_for(lambda: nvml.asked.count("nvmlDeviceGetUtilizationRates") >= 5)
