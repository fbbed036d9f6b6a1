"""A worker of environments that wait: all of them step at once, in threads or as coroutines."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import gymnasium

from stoker.errors import EnvError, StokerError
from stoker.pools.awaited import Awaited
from stoker.pools.board import CUT, DONE, STEPPING
from stoker.pools.slot import MakeEnvs, Slot
from stoker.pools.worker import NAP_S, Task, Worker

_AT_ONCE = 64  # coroutines that a thread waits for: when environments start or fail
_GRACE_S = 4.0  # for environments to end their steps and close, before the process ends

Jobs = Mapping[int, Callable[[], Any]]
"""What to do, by environment."""


class WaitingWorker(Worker):
    """Hands what is asked to its environments at once, and sleeps until something else is."""

    def __init__(self, pipe: Connection, task: Task) -> None:
        super().__init__(pipe, task)
        coroutines = task.waits == "as coroutines"
        self._lanes = _Coroutines(self._step_soon) if coroutines else _Threads(self._step_now)

    def _make_slots(self, make_env: MakeEnvs, env_ids: list[int]) -> list[Slot]:
        make, rows = self._lanes.maker(make_env), self._task.board.rows
        return self._lanes.each(
            {i: partial(Slot, make, rows, i, self._note_reset) for i in env_ids}
        )

    def _serve(self, me: object) -> None:
        mail, number = self._task.board.mail, self._task.number
        while True:
            for share in self._shares:
                share.take(self._queue)
            if self._queue:
                self._lanes.step([*self._queue])
                self._queue.clear()
            elif mail[number]:
                mail[number] = 0
                if not self._read_mail():
                    return
            elif not self._call.wait(NAP_S):
                self._look_for_mail()

    def _step_now(self, slot: Slot) -> None:
        self._step(slot)
        self._answer_if_wished()

    async def _step_soon(self, slot: Slot) -> None:
        """`_step_now`, without keeping the event loop from others."""
        self._states[slot.index] = STEPPING
        try:
            self._show(slot, await self._end_of_step(slot))
        except StokerError as error:
            self._say("failed", error)
        self._answer_if_wished()

    async def _end_of_step(self, slot: Slot) -> int:
        loop = asyncio.get_running_loop()
        if slot.to_renew:
            await loop.run_in_executor(None, slot.answer, self._report)
            return CUT
        assert isinstance(slot.env, Awaited)
        await slot.env.foresee(slot.action(), slot.next_seed(), slot.note_reset)
        try:
            slot.step()
            return DONE
        except EnvError as error:
            if self._leaving:  # when the interpreter shuts down, it has no threads to give
                raise
            await loop.run_in_executor(None, slot.mend, error, self._report)
            return CUT

    def _do(self, kind: str, contents: dict[int, tuple[Any, ...]]) -> list[Any]:
        slots = {slot.index: slot for slot in self._slots}
        return self._lanes.each(
            {i: partial(self._do_one, slots[i], kind, given) for i, given in contents.items()}
        )

    def _close(self) -> None:
        self._lanes.each({slot.index: slot.close_quietly for slot in self._slots}, _GRACE_S)


class _Threads:
    """A thread for each environment, in which it is made, stepped and closed.

    Some cannot be used from any other: a database's connection, say.
    """

    def __init__(self, step: Callable[[Slot], None]) -> None:
        self._step = step
        self._lanes: dict[int, SimpleQueue[Callable[[], Any]]] = {}

    def maker(self, make_env: MakeEnvs) -> MakeEnvs:
        return make_env

    def step(self, slots: list[Slot]) -> None:
        for slot in slots:
            self._lanes[slot.index].put(partial(self._step, slot))

    def each(self, jobs: Jobs, seconds: float | None = None) -> list[Any]:
        """The results of all jobs, each done in its environment's thread."""
        futures = {i: Future[Any]() for i in jobs}
        for env_id, job in jobs.items():
            if env_id not in self._lanes:
                lane = self._lanes[env_id] = SimpleQueue()
                name = f"stoker-env-{env_id}"
                threading.Thread(target=_run_all, args=(lane,), name=name, daemon=True).start()
            self._lanes[env_id].put(partial(_fulfil, futures[env_id], job))
        return _results(futures, seconds)


def _run_all(lane: SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        lane.get()()


def _fulfil(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # whoever waits for it raises it
        future.set_exception(error)


class _Coroutines:
    """An event loop in a thread of its own, on which every environment's coroutines run."""

    def __init__(self, step: Callable[[Slot], Any]) -> None:
        self._step = step
        self._loop = _new_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_AT_ONCE, "stoker-mend"))
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by environment, its last
        self._starting = ThreadPoolExecutor(_AT_ONCE, "stoker-start")
        threading.Thread(target=self._loop.run_forever, name="stoker-loop", daemon=True).start()

    def maker(self, make_env: MakeEnvs) -> MakeEnvs:
        if callable(make_env):
            return partial(self._made, make_env)
        return [partial(self._made, make) for make in make_env]

    def _made(self, make_env: Callable[[], gymnasium.Env[Any, Any]]) -> Awaited:
        return Awaited(make_env(), self._loop)

    def step(self, slots: list[Slot]) -> None:
        self._loop.call_soon_threadsafe(self._begin, slots)

    def _begin(self, slots: list[Slot]) -> None:
        for slot in slots:
            self._tasks[slot.index] = self._loop.create_task(self._step(slot))

    def each(self, jobs: Jobs, seconds: float | None = None) -> list[Any]:
        """The results of all jobs, which wait for coroutines, and for a step that is under way."""
        futures = {i: self._starting.submit(self._after, i, job) for i, job in jobs.items()}
        return _results(futures, seconds)

    def _after(self, env_id: int, job: Callable[[], Any]) -> Any:
        task = self._tasks.get(env_id)
        if task is not None and not task.done():
            asyncio.run_coroutine_threadsafe(_end_of(task), self._loop).result()
        return job()


async def _end_of(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


def _results(futures: Mapping[int, Future[Any]], seconds: float | None) -> list[Any]:
    if seconds is not None:
        wait(futures.values(), seconds)
        return []
    return [future.result() for future in futures.values()]


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
