"""A worker of the Ray pool: some environments on one machine of the cluster, stepped when asked.

Whatever an actor loads besides the environment is imported here: no torch, and nothing heavy. A
message is one block of bytes each way: with two arrays in it, a round trip to two actors took 1.6
to 1.7 ms instead of 1.1 to 1.3 (Ray 2.60, 2 cores).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import BadValueError, EnvError, StokerError
from stoker.pools.base_crew import Stand
from stoker.pools.blame import circumstances, making
from stoker.pools.cluster import this_machine
from stoker.pools.rows import Rows
from stoker.pools.slot import Slot
from stoker.types import EnvSpec


class RayTask(NamedTuple):
    """What a worker is made with."""

    env_ids: list[int]
    spec: EnvSpec
    n_envs: int  # of the pool: an environment has the same number everywhere
    make_env: bytes  # pickled
    stands: list[Stand] | None
    """Where it replaces another: what each of its environments was in."""
    truncate_bad_values: bool
    keep_infos: bool
    reset_deadline: float
    step_deadline: float


class Told(NamedTuple):
    """What is to be said beside the rows, where anything is."""

    faults: list[EnvError]  # that were mended
    failed: dict[int, StokerError]  # by environment, what is not to be mended: it did not step
    infos: dict[int, bytes]  # pickled


class Glance(NamedTuple):
    """What a worker that takes long is doing."""

    faults: list[EnvError]  # that were mended so far
    hang: EnvError | None  # of the environment that is past its deadline


class _Doing(NamedTuple):
    env_id: int
    call: str
    since: float


class RayWorker:
    """Environments that step one after the other. All but `glance` runs in one thread."""

    def __init__(self, task: RayTask) -> None:
        self._task = task
        # All rows of the pool, of which only those of its environments are ever touched.
        self._rows = Rows(task.spec, task.n_envs)
        self._slots: dict[int, Slot] = {}
        self._faults: deque[EnvError] = deque()
        self._failed: dict[int, StokerError] = {}
        self._doing: _Doing | None = None
        self._thread = 0

    def where(self) -> str:
        """The machine that it is on."""
        return this_machine()

    def make(self) -> StokerError | None:
        """Make the environments, or say why they cannot be made."""
        os.dup2(2, 1)  # what environments print is no output of the trainer's
        self._thread = threading.get_ident()
        task = self._task
        try:
            with making(task.env_ids):
                make_env = pickle.loads(task.make_env)
                for env_id in task.env_ids:
                    self._slots[env_id] = Slot(make_env, self._rows, env_id, self._note_reset)
        except StokerError as error:
            return error
        for slot, stand in zip(self._slots.values(), task.stands or (), strict=False):
            slot.stand(*stand)
        return None

    def step(self, message: bytes) -> bytes:
        """Step some environments; their rows, and what else is to be said."""
        began, (env_ids, actions) = time.monotonic(), read_step(message, self._rows)
        self._rows.action[env_ids] = actions
        return self._answered(env_ids, began)

    def renew(self, message: bytes) -> bytes:
        """The same for environments whose last rows are refused: they begin another episode."""
        began, (env_ids, _) = time.monotonic(), read_step(message, self._rows)
        for env_id in env_ids.tolist():
            self._slots[env_id].reject()
        return self._answered(env_ids, began)

    def _answered(self, env_ids: np.ndarray, began: float) -> bytes:
        for env_id in env_ids.tolist():
            self._doing = _Doing(env_id, "step", time.monotonic())
            try:
                self._slots[env_id].answer(self._report)
            except StokerError as error:
                self._failed[env_id] = error
        self._doing = None
        worked = np.float64(time.monotonic() - began).tobytes()
        return self._rows.to_bytes(env_ids) + worked + self._beside(env_ids)

    def _beside(self, env_ids: np.ndarray) -> bytes:
        infos = dict[int, bytes]()
        if self._task.keep_infos:
            for env_id in env_ids.tolist():
                self._add_infos(infos, self._slots[env_id])
        if not (self._faults or self._failed or infos):
            return b""
        failed, self._failed = self._failed, {}
        return pickle.dumps(Told(self._drained(), failed, infos))

    def _add_infos(self, infos: dict[int, bytes], slot: Slot) -> None:
        if not slot.info and not slot.final_info:
            return
        try:
            infos[slot.index] = pickle.dumps(slot.infos)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            self._failed[slot.index] = EnvError(
                f"Environment {slot.index} returned an info that cannot be sent from its worker: "
                f"{type(error).__name__}: {error}. Keep plain values and arrays in it."
            )

    def _report(self, error: EnvError) -> None:
        """Tell a fault that is about to be mended, or raise it if it is not to be."""
        if isinstance(error, BadValueError) and not self._task.truncate_bad_values:
            raise error
        self._faults.append(error)

    def _drained(self) -> list[EnvError]:
        """The faults that nobody was told of; two threads may ask."""
        faults = list[EnvError]()
        with contextlib.suppress(IndexError):
            while True:
                faults.append(self._faults.popleft())
        return faults

    def _note_reset(self, env_id: int) -> None:
        self._doing = _Doing(env_id, "reset", time.monotonic())

    def do(self, kind: str, contents: bytes) -> tuple[bytes, bytes]:
        """Have each of some environments do something, with arguments each: pickled results.

        Where they began an episode, their rows come along.
        """
        given: dict[int, tuple[Any, ...]] = pickle.loads(contents)
        env_ids = np.fromiter(given, np.int64)
        try:
            return self._done(kind, given), self._shown(kind, env_ids)
        except StokerError as error:
            return pickle.dumps(error), b""
        finally:
            self._doing = None

    def _done(self, kind: str, given: dict[int, tuple[Any, ...]]) -> bytes:
        acts: dict[int, Callable[..., Any]] = {i: getattr(self._slots[i], kind) for i in given}
        results = [acts[env_id](*arguments) for env_id, arguments in given.items()]
        try:
            return pickle.dumps(results)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise EnvError(f"The result of {kind} cannot be sent: {error}") from error

    def _shown(self, kind: str, env_ids: np.ndarray) -> bytes:
        if kind not in ("start", "restart"):
            return b""
        return self._rows.to_bytes(env_ids) + self._beside(env_ids)

    def glance(self) -> bytes:
        """What it is doing, from another thread: a pickled `Glance`."""
        doing, task, now = self._doing, self._task, time.monotonic()
        hang = None
        if doing is not None:
            name = f"{doing.call}_deadline"
            if now - doing.since > getattr(task, name):
                hang = self._describe_hang(doing, name)
        return pickle.dumps(Glance(self._drained(), hang))

    def _describe_hang(self, doing: _Doing, deadline: str) -> EnvError:
        env_id, rows = doing.env_id, self._rows
        action = None if doing.call == "reset" else rows.action[env_id]
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)).rstrip() if frame else "  (not known)"
        return EnvError(
            f"Environment {env_id} hangs in {doing.call}(): it has taken more than "
            f"{getattr(self._task, deadline):g} s (--{deadline.replace('_', '-')}). "
            f"{circumstances(rows.seed_of(env_id), action)} What its worker (process "
            f"{os.getpid()}) is doing:\n{stack}"
        )

    def close(self) -> None:
        """Close all environments."""
        for slot in self._slots.values():
            slot.close_quietly()


def write_step(rows: Rows, env_ids: np.ndarray) -> bytes:
    """The message that has these environments take their rows' actions."""
    return env_ids.astype(np.int32).tobytes() + rows.action[env_ids].tobytes()


def read_step(message: bytes, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The environments that a message names, and their actions."""
    each = rows.action[:1].nbytes
    count = len(message) // (4 + each)
    env_ids = np.frombuffer(message, np.int32, count).astype(np.int64)
    shape = (count, *rows.action.shape[1:])
    return env_ids, np.ndarray(shape, rows.action.dtype, message, 4 * count)
