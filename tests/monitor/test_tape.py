"""The tape, on clocks that the test turns: every second of every thread is told once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from stoker.monitor import phases
from stoker.monitor.phases import PhaseClock
from stoker.monitor.records import GpuSample, HostSample
from stoker.monitor.sampler import Sampler
from stoker.monitor.tape import Tape
from stoker.types import Stretch


class Time:
    """Stands in for the `time` module."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Kept(list[Stretch]):
    def add(self, stretches: Sequence[Stretch]) -> None:
        self.extend(stretches)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    turned = Time()
    monkeypatch.setattr(phases, "time", turned)
    return turned


def spend(clock: PhaseClock, time: Time, phase: str, seconds: float) -> None:
    with clock.phase(phase):
        time.now += seconds


def test_a_stretch_has_the_seconds_of_each_phase_in_it_also_of_one_that_goes_on(time: Time) -> None:
    clock, kept = PhaseClock(), Kept()
    tape = Tape({"learner": clock}, kept.add, before_s=50.0, clock=time.perf_counter)
    spend(clock, time, "env", 0.5)
    time.now += 0.25
    tape.read(0.0, None, None)
    with clock.phase("update"):
        time.now += 2.0
        tape.read(0.0, None, None)
        time.now += 1.0
    tape.close()
    assert kept == [
        Stretch(50.0, 0.75, {"learner": {"env": 0.5}}, {}, {}),
        Stretch(50.75, 2.0, {"learner": {"update": 2.0}}, {}, {}),
        Stretch(52.75, 1.0, {"learner": {"update": 1.0}}, {}, {}),
    ]


def test_every_thread_has_its_phases(time: Time) -> None:
    learner, collector, kept = PhaseClock(), PhaseClock(), Kept()
    clocks = {"learner": learner, "collector": collector}
    tape = Tape(clocks, kept.add, clock=time.perf_counter)
    with learner.phase("wait"):
        spend(collector, time, "env", 3.0)
        spend(collector, time, "inference", 1.0)
    tape.close()
    (stretch,) = kept
    assert stretch.threads == {
        "learner": {"wait": 4.0},
        "collector": {"env": 3.0, "inference": 1.0},
    }


def test_a_clock_that_begins_anew_loses_nothing_of_what_comes_after(time: Time) -> None:
    clock, kept = PhaseClock(), Kept()
    tape = Tape({"learner": clock}, kept.add, clock=time.perf_counter)
    spend(clock, time, "update", 3.0)
    tape.read(0.0, None, None)
    time.now += 1.0
    clock.restart()
    spend(clock, time, "update", 2.0)
    tape.close()
    assert [each.threads["learner"] for each in kept] == [{"update": 3.0}, {"update": 2.0}]


def test_figures_that_are_unknown_are_left_out(time: Time) -> None:
    kept = Kept()
    tape = Tape({}, kept.add, clock=time.perf_counter)
    time.now += 1.0
    tape.read(0.0, GpuSample(0.0, busy=0.0, power_w=300.0), HostSample(0.0, cpu=0.5, cores=(0.5,)))
    time.now += 1.0
    tape.read(0.0, GpuSample(0.0), None)
    tape.close()
    assert (kept[0].gpu, kept[0].host) == ({"busy": 0.0, "power_w": 300.0}, {"cpu": 0.5})
    assert (kept[1].gpu, kept[1].host) == ({}, {})


def test_stretches_are_kept_some_seconds_worth_at_a_time_and_none_is_lost(time: Time) -> None:
    clock, kept = PhaseClock(), Kept()
    tape = Tape({"learner": clock}, kept.add, clock=time.perf_counter)
    batches = set()
    for _ in range(200):
        spend(clock, time, "env", 0.1)
        tape.read(0.0, None, None)
        batches.add(len(kept))
    assert len(batches) < 10
    tape.close()
    assert tape.close()  # a second time does nothing
    assert sum(each.threads["learner"].get("env", 0.0) for each in kept) == pytest.approx(20.0)
    assert sum(each.seconds for each in kept) == pytest.approx(20.0)


def test_closing_does_not_wait_for_ever_for_a_disk_that_hangs(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.monitor.tape._CLOSES_WITHIN_S", 0.05)
    hangs, goes_on = threading.Event(), threading.Event()

    def keep(stretches: Sequence[Stretch]) -> None:
        hangs.set()
        goes_on.wait(20)

    tape = Tape({}, keep, clock=time.perf_counter)
    time.now += 60.0
    writer = threading.Thread(target=tape.read, args=(0.0, None, None))
    writer.start()
    assert hangs.wait(20)
    assert tape.close() is False
    goes_on.set()
    writer.join()


def test_the_sampler_reads_it_three_times_a_second_or_more(time: Time) -> None:
    clock, kept = PhaseClock(), Kept()
    sampler = Sampler(gpus=False, clock=time.perf_counter)
    sampler.open()
    sampler.tape = Tape({"learner": clock}, kept.add, clock=time.perf_counter)
    while time.now < 110.0:
        time.now += sampler.tick()
    assert sampler.tape.close()
    assert 30 <= len(kept) <= 50
