"""Environments that wait: all of a worker's step at once, in threads or as coroutines."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from awaitable import AsCoroutines
from pool_envs import Counter, act, spec_of

from stoker.config.schema import FaultSettings
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError, EpisodeCutError
from stoker.pools.awaited import Awaited, as_blocking, is_async
from stoker.pools.choose import IO_STEP_S, Probe, choose, probe
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.pools.worker import Waits
from stoker.types import EpisodeJournal

_TOGETHER = 16
_BARRIER = threading.Barrier(_TOGETHER, timeout=30)


class InThreads(Counter):
    """A step ends only once as many others are amid one, in the same process."""

    def step(self, action: Any) -> Any:
        _BARRIER.wait()
        return super().step(action)


class AsTasks(Counter):
    """The same for coroutines, whose barrier is of their loop."""

    waiting: list[asyncio.Future[None]] = []

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        if len(self.waiting) == _TOGETHER:
            for one in self.waiting:
                one.set_result(None)
            self.waiting.clear()
        await asyncio.wait_for(mine, 30)
        return super().step(action)


@contextmanager
def pool_of(
    make_env: Any, waits: Waits, n: int = 4, workers: int = 1, **settings: Any
) -> Iterator[ProcessPool]:
    faults = FaultSettings(**settings)
    with ProcessPool(make_env, spec_of(Counter()), n, workers, faults, waits=waits) as pool:
        yield pool


@pytest.mark.parametrize(
    ("make_env", "waits"), [(InThreads, "in threads"), (AsTasks, "as coroutines")]
)
def test_all_environments_of_a_worker_step_at_once(make_env: Any, waits: Waits) -> None:
    with pool_of(make_env, waits, _TOGETHER, max_faults=0) as pool:
        pool.reset(seed=0)
        for t in (1, 2, 3, 1):  # the fourth step is of the next episode
            batch = pool.step(act(*[0] * _TOGETHER))
            assert batch.valid.all()
            assert batch.reward.tolist() == [t] * _TOGETHER


class Database(Counter):
    """Holds what only the thread that made it may use; says so if another does."""

    def __init__(self) -> None:
        super().__init__(length=2)
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table steps (t int)")

    def reset(self, **given: Any) -> Any:
        self.connection.execute("delete from steps")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.connection.execute("insert into steps values (1)")
        obs, _, *rest = super().step(action)
        ((count,),) = self.connection.execute("select count(*) from steps")
        return obs, float(count), *rest

    def rows(self) -> int:
        return self.connection.execute("select count(*) from steps").fetchone()[0]


def test_an_environment_lives_in_one_thread() -> None:
    with pool_of(Database, "in threads", max_faults=0) as pool:
        pool.reset(seed=0)
        for reward in (1, 2, 1):
            assert pool.step(act(0, 0, 0, 0)).reward.tolist() == [reward] * 4
        assert pool.call("rows") == [1] * 4


class Sleeper(Counter):
    """Action 1 sleeps for long."""

    def step(self, action: Any) -> Any:
        if action == 1:
            time.sleep(60)
        return super().step(action)


class AsyncSleeper(Counter):
    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == 1:
            await asyncio.sleep(60)
        return super().step(action)


sleepers = pytest.mark.parametrize(
    ("make_env", "waits"), [(Sleeper, "in threads"), (AsyncSleeper, "as coroutines")]
)


@sleepers
def test_nobody_waits_for_another(make_env: Any, waits: Waits) -> None:
    with pool_of(lambda: make_env(length=99), waits, 8) as pool:
        pool.reset(seed=0)
        pool.send(act(1, *[0] * 7), np.arange(8))
        for t in range(1, 20):
            seen: list[int] = []
            while len(seen) < 7:
                batch = pool.recv(7 - len(seen), patience=0.05)
                assert (batch.reward == t).all()
                seen += batch.env_ids.tolist()
            assert sorted(seen) == list(range(1, 8))
            pool.send(act(*[0] * 7), np.arange(1, 8))


@sleepers
def test_one_that_hangs_is_ended_and_the_others_begin_anew(make_env: Any, waits: Waits) -> None:
    with pool_of(make_env, waits, step_deadline=0.5) as pool:
        pool.reset(seed=0)
        pool.send(act(1, 0, 0, 0), np.arange(4))
        with pytest.warns(UserWarning, match=r"Environment 0 hangs in step\(\)"):
            batch = pool.recv(4)
        assert batch.valid.tolist() == [False, True, True, True]
        assert pool.faults()["hangs"] == 1
        assert not pool.step(act(0, 0, 0, 0)).valid.all(), "their worker was replaced"
        assert pool.step(act(0, 0, 0, 0)).valid.all()


@sleepers
def test_a_pool_is_closed_while_steps_are_in_flight(make_env: Any, waits: Waits) -> None:
    pool = ProcessPool(make_env, spec_of(Counter()), 4, 2, waits=waits)
    pool.reset(seed=0)
    pool.send(act(1, 1, 1, 1), np.arange(4))
    assert len(multiprocessing.active_children()) == 2
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 20
    assert not multiprocessing.active_children()


class FailsAtTheEnd(Counter):
    """Notes that it is made; with action 1 it fails once another of its worker is closed."""

    over = threading.Event()

    def __init__(self, notes: Path) -> None:
        super().__init__()
        (notes / str(time.monotonic_ns())).touch()

    def step(self, action: Any) -> Any:
        if action == 1:
            self.over.wait(60)
            raise OSError("the server has gone")
        return super().step(action)

    def close(self) -> None:
        self.over.set()


class AsyncFailsAtTheEnd(FailsAtTheEnd):
    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        while action == 1 and not self.over.is_set():
            await asyncio.sleep(0.01)
        return super().step(action)


@pytest.mark.parametrize(
    ("make_env", "waits"), [(FailsAtTheEnd, "in threads"), (AsyncFailsAtTheEnd, "as coroutines")]
)
def test_what_fails_while_a_pool_is_closed_is_not_mended(
    make_env: Any, waits: Waits, tmp_path: Path
) -> None:
    with pool_of(partial(make_env, tmp_path), waits, n=2) as pool:
        pool.reset(seed=0)
        pool.send(act(0, 1), np.arange(2))
        pool.recv(1)
    assert len(list(tmp_path.iterdir())) == 2, "made in vain"


class AsyncFails(Counter):
    """Fails where it is told to."""

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        if self.t and self.actions[-1] == 2:
            raise OSError("the door is shut")
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == 1:
            raise SystemExit(3)
        return super().step(action)


def test_a_coroutine_that_leaves_or_fails_in_reset_is_replaced() -> None:
    with pool_of(lambda: AsyncFails(length=1), "as coroutines") as pool:
        pool.reset(seed=0)
        with pytest.warns(UserWarning, match=r"raised (SystemExit|OSError)"):
            batch = pool.step(act(0, 1, 2, 0))
        assert batch.valid.tolist() == [True, False, False, True]
        assert batch.truncated.tolist() == [False, True, True, False]
        assert pool.step(act(0, 0, 0, 0)).valid.all()
        assert pool.faults()["env_errors"] == 2


def test_coroutines_can_be_stepped_inline() -> None:
    plain = InlinePool(Counter, spec_of(Counter()), 3)
    with InlinePool(lambda: AsCoroutines(Counter), spec_of(Counter()), 3) as awaited:
        plain.reset(seed=1)
        awaited.reset(seed=1)
        for _ in range(7):
            ours, theirs = plain.step(act(0, 1, 2)), awaited.step(act(0, 1, 2))
            assert ours.obs["obs"].tolist() == theirs.obs["obs"].tolist()
            assert ours.terminated.tolist() == theirs.terminated.tolist()


def test_what_is_awaited() -> None:
    env = AsCoroutines(Counter)
    assert is_async(env)
    assert not is_async(Counter())
    assert isinstance(as_blocking(env), Awaited)
    plain = Counter()
    assert as_blocking(plain) is plain


def waiting(wall: float, cpu: float, coroutines: bool = False) -> Probe:
    return Probe(spec_of(Counter()), wall, cpu, coroutines)


@pytest.mark.parametrize(
    ("wall", "cpu", "expected"),
    [
        (50e-3, 1e-3, "io"),
        (50e-3, 30e-3, "process"),  # mostly work
        (1.2e-3, 0.9e-3, "process"),  # too short a wait
        (10e-6, 5e-6, "inline"),
    ],
)
def test_which_environments_wait(wall: float, cpu: float, expected: str) -> None:
    assert choose(waiting(wall, cpu), n_envs=8, cores=4).pool == expected


def test_coroutines_run_as_such_and_others_in_threads() -> None:
    assert choose(waiting(0.05, 0.001), 8, 4).waits == "in threads"
    assert choose(waiting(0.05, 0.001, True), 8, 4).waits == "as coroutines"
    assert choose(waiting(0.05, 0.001, True), 8, 4, asked="process").waits == "no"


def test_the_reason_says_what_is_in_flight() -> None:
    choice = choose(waiting(0.05, 0.002), n_envs=256, cores=2)
    assert choice.reason == (
        "a step takes 50,000 us, 48,000 of them waiting: 256 in flight give at most 5,120 a second"
    )


@pytest.mark.parametrize(
    ("wall", "cpu", "cores", "expected"),
    [
        (0.05, 0.0, 2, 512),  # 2 x 0.05 / 100 us = 1,000
        (0.05, 1e-3, 2, 64),  # 2 x 0.05 / 1.1 ms = 90
        (0.05, 0.0, 64, 1024),
        (2e-3, 1e-3, 1, 1),
    ],
)
def test_in_flight_by_littles_law(wall: float, cpu: float, cores: int, expected: int) -> None:
    assert pytest.approx(100e-6) == IO_STEP_S
    assert waiting(wall, cpu).in_flight(cores) == expected


class Napper(Counter):
    """Waits a little while every step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return super().step(action)


def test_a_probe_tells_waiting_from_work() -> None:
    found = probe("napper", Napper())
    assert found.waits
    assert not found.is_async
    assert found.step_cpu_s < 0.5 * found.step_wall_s
    assert probe("coroutines", AsCoroutines(Counter)).is_async


def test_a_registered_environment_may_be_of_coroutines() -> None:
    gymnasium.register("Awaited-v0", entry_point=AsTasks)
    gymnasium.register("Limited-v0", entry_point=AsTasks, max_episode_steps=5)
    try:
        assert is_async(EnvFactory("Awaited-v0")())
        with pytest.raises(ConfigError, match=r"Limited-v0 .* max_episode_steps"):
            EnvFactory("Limited-v0")()
    finally:
        del gymnasium.registry["Awaited-v0"], gymnasium.registry["Limited-v0"]


class Unprintable(np.ndarray):
    """An observation that somebody writes out."""

    def __repr__(self) -> str:
        raise AssertionError("this takes milliseconds")


def test_results_are_handed_on_without_writing_them_out() -> None:
    class Shown(AsCoroutines):
        async def step(self, action: Any) -> Any:
            obs, *rest = await super().step(action)
            return obs.view(Unprintable), *rest

    env = as_blocking(Shown(Counter))
    env.reset(seed=0)
    assert env.step(0)[1] == 1.0
    env.close()
    env.close()


class Cancels(Counter):
    """A client that is shut down amid a step."""

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == 1:
            raise asyncio.CancelledError
        return super().step(action)


class ThreadCancels(Counter):
    def step(self, action: Any) -> Any:
        if action == 1:
            raise asyncio.CancelledError
        return super().step(action)


@pytest.mark.parametrize(
    ("make_env", "waits"), [(ThreadCancels, "in threads"), (Cancels, "as coroutines")]
)
def test_a_cancelled_step_is_an_error_of_one_environment(make_env: Any, waits: Waits) -> None:
    with pool_of(make_env, waits) as pool:
        pool.reset(seed=0)
        with pytest.warns(UserWarning, match="Environment 2 raised CancelledError"):
            batch = pool.step(act(0, 0, 1, 0))
        assert batch.valid.tolist() == [True, True, False, True]
        assert pool.step(act(0, 0, 0, 0)).valid.all()


class SlowReset(Counter):
    """Resets take longer than steps may."""

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(1.0 if self.t else 0.0)
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


def test_the_reset_of_a_coroutine_has_its_own_deadline() -> None:
    make = partial(SlowReset, length=1)
    with pool_of(make, "as coroutines", step_deadline=0.4, reset_deadline=30.0) as pool:
        pool.reset(seed=0)
        assert pool.step(act(0, 0, 0, 0)).valid.all()
        assert pool.faults()["hangs"] == 0


class NeverBoth(Counter):
    """Says if it is reset while it steps."""

    amid = False

    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        assert not self.amid, "reset amid a step"
        return super().reset(**given)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self.amid = True
        await asyncio.sleep(0.3)
        self.amid = False
        return super().step(action)


def test_a_coroutine_is_not_reset_while_it_steps() -> None:
    with pool_of(NeverBoth, "as coroutines") as pool:
        pool.reset(seed=0)
        pool.send(act(0, 0, 0, 0), np.arange(4))
        time.sleep(0.1)
        pool.reset(seed=1)
        assert pool.step(act(0, 0, 0, 0)).reward.tolist() == [1.0] * 4


class OwnCutError(EpisodeCutError):
    def __init__(self, url: str, code: int) -> None:
        super().__init__(f"{url} answered {code}")


class CutsItself(Counter):
    def step(self, action: Any) -> Any:
        if action == 1:
            raise OwnCutError("here", 503)
        return super().step(action)


def test_an_error_of_the_users_own_class_travels_as_ours() -> None:
    with pool_of(CutsItself, "in threads") as pool:
        pool.reset(seed=0)
        with pytest.warns(UserWarning, match="here answered 503"):
            assert pool.step(act(0, 1, 0, 0)).valid.tolist() == [True, False, True, True]


def test_a_replay_that_is_cut_off_begins_anew() -> None:
    actions = np.array([[[0], [0]], [[0], [1]]])  # the second environment's second action cuts
    journal = EpisodeJournal(np.zeros(2, np.int64), np.full(2, 2), actions)
    pool = InlinePool(lambda: CutsItself(length=9), spec_of(Counter()), 2)
    batch = pool.reset(seed=0, journal=journal)
    assert batch.valid.tolist() == [True, False]
    assert batch.obs["obs"].tolist() == [[0, 2], [1, 0]]
