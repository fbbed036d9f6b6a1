"""Environments in worker processes, many to a worker, over shared memory.

On the step path nothing is pickled: the parent writes actions to the shared rows and sends each
worker one byte (and the ids, where it is to step only some); the worker answers one byte. Control
messages (start, errors) are pickled. Workers are forked from a server that imported neither torch
nor the user's main module, so they hold no CUDA context and start quickly. Shared memory is an
unlinked mapping, so that nothing is left behind however the processes end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from stoker.errors import EnvError, StokerError, WorkerError
from stoker.pools.base import BasePool, check_values, replay_of
from stoker.pools.rows import Rows
from stoker.pools.slot import Slot
from stoker.types import EnvSpec, EpisodeJournal, StepBatch

_STEP, _DONE, _FAILED, _START, _CLOSE = b"s", b"d", b"f", b"r", b"x"
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


class ProcessPool(BasePool):
    """N environments over `n_workers` processes, in contiguous blocks."""

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        spec: EnvSpec,
        n_envs: int,
        n_workers: int,
        start_deadline: float = 120.0,
    ) -> None:
        super().__init__(spec, n_envs)
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        memory = context.RawArray("B", Rows.size(spec, n_envs))
        self._rows = Rows(spec, n_envs, memory)
        self._ready = np.zeros(n_envs, bool)
        self._awaited: dict[Connection, list[np.ndarray]] = {}  # who each answer to come is about
        self._workers: list[tuple[Any, Connection, np.ndarray]] = []
        try:
            payload = cloudpickle.dumps(make_env)
            with _ctrl_c_held_back(), _worker_surroundings(context):
                for block in np.array_split(self._everyone, min(n_workers, n_envs)):
                    self._start_worker(context, payload, memory, block)
            self._await_all(time.monotonic() + start_deadline)
        except BaseException as error:  # Ctrl-C, too, must leave nobody behind
            self.close()
            if isinstance(error, StokerError) or not isinstance(error, Exception):
                raise
            raise WorkerError(
                f"Worker processes could not start: {type(error).__name__}: {error}. Use the "
                "inline pool (--pool inline), or mend what the message names."
            ) from error

    def _start_worker(self, context: Any, payload: bytes, memory: Any, block: np.ndarray) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(theirs, payload, self.spec, memory, self.n_envs, block),
            name=f"stoker-env-{block[0]}-{block[-1]}",
            daemon=True,
        )
        process.start()
        theirs.close()  # so that the pipe ends when the worker does
        self._workers.append((process, ours, block))
        self._awaited[ours] = [block]

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        for _, pipe, block in self._workers:
            starts = [replay_of(journal, int(i), self.codec) for i in block]
            self._tell(pipe, block, _START + pickle.dumps((seed, starts)))
        self._await_all()
        self._ready[:] = False
        return check_values(self._rows.batch(), self.spec)

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        self._rows.action[env_ids] = self.codec.encode(actions)
        for _, pipe, block in self._workers:
            if len(env_ids) == self.n_envs:
                self._tell(pipe, block, _STEP)
                continue
            chosen = env_ids[(block[0] <= env_ids) & (env_ids <= block[-1])]
            if chosen.size:
                self._tell(pipe, chosen, _STEP + chosen.astype(np.int64).tobytes())

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        while self._ready.sum() < at_least and self._awaited:
            self._collect(wait(list(self._awaited)))
        ready = None if self._ready.all() else np.flatnonzero(self._ready)
        self._ready[:] = False
        return check_values(self._rows.batch(ready), self.spec)

    def close(self) -> None:
        for _, pipe, _ in self._workers:
            with contextlib.suppress(OSError):
                pipe.send_bytes(_CLOSE)
        deadline = time.monotonic() + 5.0
        while self._workers:
            process, pipe, _ = self._workers.pop()
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._awaited.clear()

    def _tell(self, pipe: Connection, env_ids: np.ndarray, message: bytes) -> None:
        try:
            pipe.send_bytes(message)
        except OSError as error:
            raise self._obituary(pipe) from error
        self._awaited.setdefault(pipe, []).append(env_ids)

    def _await_all(self, deadline: float | None = None) -> None:
        while self._awaited:
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            heard = wait(list(self._awaited), patience)
            if not heard:
                late = [ids.tolist() for waiting in self._awaited.values() for ids in waiting]
                raise WorkerError(
                    f"Worker processes did not start in time: environments {late} are still being "
                    "made."
                )
            self._collect(heard)

    def _collect(self, pipes: list[Any]) -> None:
        for pipe in pipes:
            try:
                message = pipe.recv_bytes()
            except (EOFError, OSError) as error:
                raise self._obituary(pipe) from error
            if message[:1] == _FAILED:
                raise pickle.loads(message[1:])
            waiting = self._awaited[pipe]
            self._ready[waiting.pop(0)] = True
            if not waiting:
                del self._awaited[pipe]

    def _obituary(self, pipe: Connection) -> StokerError:
        """Why a worker is gone: the error that it left, or how it died."""
        with contextlib.suppress(EOFError, OSError):
            while message := pipe.recv_bytes():
                if message[:1] == _FAILED:
                    return pickle.loads(message[1:])
        process, _, block = next(worker for worker in self._workers if worker[1] is pipe)
        process.join(1.0)
        return WorkerError(
            f"The worker of environments {block[0]} to {block[-1]} (process {process.pid}) died "
            f"with exit code {process.exitcode}. If the system killed it for want of memory, use "
            "fewer environments; resume the run with `stoker resume`."
        )


@contextlib.contextmanager
def _worker_surroundings(context: Any) -> Iterator[None]:
    """While workers start: one BLAS thread each, and no import of the user's main module.

    Multiprocessing would run the user's script again in every worker (and so import torch there).
    Cloudpickle sends what is defined in the script by value, so there is no need.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    kept = {name: os.environ.get(name) for name in _ONE_THREAD}
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["stoker.pools.process"])
    try:
        os.environ.update({name: os.environ.get(name, one) for name, one in _ONE_THREAD.items()})
        main.__spec__ = None
        if hidden["__file__"] is not None:
            del main.__file__
        yield
    finally:
        main.__spec__ = hidden["__spec__"]
        if hidden["__file__"] is not None:
            main.__file__ = hidden["__file__"]
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """While workers start: a Ctrl-C at the terminal does not reach them, and the trainer later.

    They inherit a mask that blocks it, as it would strike amid their imports. The mask is this
    thread's alone, and a thread of numpy's may take the signal instead: so the trainer's handler
    only notes it, lest the trainer lose sight of a worker that is half started.
    """
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is not None and threading.current_thread() is threading.main_thread()
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # its start unblocks SIGINT, so it comes first
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if ours:
        signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, handler)
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what is pending arrives here
        if noted:
            signal.raise_signal(signal.SIGINT)


def _work(
    pipe: Connection, payload: bytes, spec: EnvSpec, memory: Any, n_envs: int, block: np.ndarray
) -> None:
    """A worker's life: make its environments, then step them until told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_trainer, daemon=True).start()
    slots: list[Slot] = []
    try:
        with contextlib.suppress(EOFError, BrokenPipeError):  # the trainer is gone: leave too
            slots = _make_slots(payload, Rows(spec, n_envs, memory), block)
            pipe.send_bytes(_DONE)
            while (message := pipe.recv_bytes()) != _CLOSE:
                if message == _STEP:
                    for slot in slots:
                        slot.step()
                elif message[:1] == _STEP:
                    for env_id in np.frombuffer(message[1:], np.int64).tolist():
                        slots[env_id - block[0]].step()
                else:
                    seed, starts = pickle.loads(message[1:])
                    for slot, (episode, replay) in zip(slots, starts, strict=True):
                        slot.start(seed, episode, replay)
                pipe.send_bytes(_DONE)
    except StokerError as error:
        with contextlib.suppress(OSError):
            pipe.send_bytes(_FAILED + pickle.dumps(error))
    finally:
        for slot in slots:
            with contextlib.suppress(Exception):  # a failing close must not hide the first error
                slot.close()


def _make_slots(payload: bytes, rows: Rows, block: np.ndarray) -> list[Slot]:
    try:
        make_env = pickle.loads(payload)
        return [Slot(make_env(), rows, int(i)) for i in block]
    except StokerError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(
            f"Environments {block[0]} to {block[-1]} could not be made: {type(error).__name__}: "
            f"{error}\n{traceback.format_exc().rstrip()}"
        ) from error


def _leave_with_trainer() -> None:
    """End this worker soon after the trainer has ended, even amid a step that hangs."""
    trainer = multiprocessing.parent_process()
    assert trainer is not None, "a worker has a parent"
    wait([trainer.sentinel])
    time.sleep(2.0)  # an environment that is well closes itself in this time
    os._exit(1)
