"""The phase clock, on a clock that the test turns."""

from __future__ import annotations

import threading

import pytest

from stoker.monitor import phases
from stoker.monitor.phases import PhaseClock


class Time:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    turned = Time()
    monkeypatch.setattr(phases, "time", turned)
    return turned


def spend(clock: PhaseClock, time: Time, **seconds: float) -> None:
    for name, took in seconds.items():
        with clock.phase(name):
            time.now += took


def test_shares_are_of_the_wall_clock_and_sum_to_1(time: Time) -> None:
    clock = PhaseClock()
    spend(clock, time, env=2.0, update=5.0)
    spend(clock, time, env=1.0)
    time.now += 2.0
    wall, shares = clock.lap()
    assert wall == 10.0
    assert shares == pytest.approx({"env": 0.3, "update": 0.5, "other": 0.2})
    assert sum(shares.values()) == pytest.approx(1.0)
    assert clock.total == {"env": 3.0, "update": 5.0}


def test_a_lap_begins_where_the_last_one_ended(time: Time) -> None:
    clock = PhaseClock()
    spend(clock, time, env=4.0)
    clock.lap()
    spend(clock, time, update=1.0)
    time.now += 3.0
    wall, shares = clock.lap()
    assert wall == 4.0
    assert shares == pytest.approx({"update": 0.25, "other": 0.75})
    assert clock.elapsed() == 8.0
    assert clock.shares() == pytest.approx({"env": 0.5, "update": 0.125, "other": 0.375})


def test_a_lap_amid_a_phase_has_its_share_of_it(time: Time) -> None:
    clock = PhaseClock()
    with clock.phase("env"):
        time.now += 3.0
        with clock.phase("store"):
            time.now += 1.0
            assert clock.lap() == (4.0, pytest.approx({"env": 0.75, "store": 0.25, "other": 0.0}))
            time.now += 1.0
        time.now += 3.0
    assert clock.lap() == (4.0, pytest.approx({"env": 0.75, "store": 0.25, "other": 0.0}))


def test_a_restarted_clock_knows_nothing_of_before(time: Time) -> None:
    clock = PhaseClock()
    spend(clock, time, env=4.0)
    clock.lap()
    spend(clock, time, update=2.0)
    clock.restart()
    assert clock.elapsed() == 0.0
    spend(clock, time, env=1.0)
    time.now += 1.0
    wall, shares = clock.lap()
    assert wall == 2.0
    assert shares == pytest.approx({"env": 0.5, "other": 0.5})
    assert clock.shares() == pytest.approx({"env": 0.5, "other": 0.5})


def test_another_thread_can_read_and_no_time_is_lost_or_counted_twice() -> None:
    clock, laps, done = PhaseClock(), [], threading.Event()

    def work() -> None:
        for number in range(2000):
            with clock.phase(f"phase {number % 50}"):
                sum(range(50))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        laps.append(clock.lap())
        clock.shares()
    thread.join()
    laps.append(clock.lap())
    for name, total in clock.total.items():
        assert sum(wall * shares.get(name, 0.0) for wall, shares in laps) == pytest.approx(total)
    assert len(clock.total) == 50


def test_a_phase_that_raises_is_timed_too(time: Time) -> None:
    clock = PhaseClock()

    def fail() -> None:
        time.now += 1.0
        raise KeyError

    with pytest.raises(KeyError), clock.phase("env"):
        fail()
    assert clock.total["env"] == 1.0


def test_a_clock_that_has_only_just_begun_divides_by_no_zero(time: Time) -> None:
    clock = PhaseClock()
    assert clock.lap()[1] == {"other": 1.0}
    assert clock.shares() == {"other": 1.0}


def test_the_real_clock_sums_to_1_as_well() -> None:
    clock = PhaseClock()
    for name in ("env", "update"):
        with clock.phase(name):
            sum(range(10_000))
    _, shares = clock.lap()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["env"] > 0
    assert sum(clock.shares().values()) == pytest.approx(1.0)
