"""A worker's life: make its environments, step those that are asked, until told to stop.

This file and what it imports is all that a worker loads besides the environment: keep it light.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import signal
import statistics
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

from stoker.errors import BadValueError, EnvError, StokerError
from stoker.pools.blame import making
from stoker.pools.board import ASKED, CUT, DONE, IDLE, RENEW, RESETTING, STEPPING, TAKEN, Board
from stoker.pools.slot import MakeEnvs, Slot

NAP_S = 0.5  # between looks at whether this thread is still to wait
_NEVER_S = 1e6
_MANY_TIMES = 4  # longer than usual is a stall
_NICE = 5
"""How far workers step back."""


Waits = Literal["no", "in threads", "as coroutines"]
"""Whether environments spend their steps waiting, so that all of a worker's step at once."""


class Task(NamedTuple):
    """What a worker is started with."""

    number: int
    shares: list[list[int]]  # its environments, by group
    make_env: bytes  # pickled
    board: Board
    stands: list[tuple[int | None, int]] | None
    """Where it replaces another: (seed, episode) that each of its environments was in."""
    truncate_bad_values: bool
    stall_after: float
    keep_infos: bool
    waits: Waits


def work(pipe: Connection, stacks: Connection, task: Task) -> None:
    """What the process of a worker runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(os, "nice"):  # whoever feeds many workers must not wait for a core behind them
        os.nice(_NICE)
    if hasattr(faulthandler, "register"):  # works while C code holds the GIL, too
        faulthandler.register(signal.SIGUSR1, stacks.fileno(), all_threads=True)
    sys.stdout.flush()
    os.dup2(2, 1)  # the trainer's standard output is its own
    sys.stdout = _Aside(task.board)
    worker = Worker(pipe, task)
    if task.waits != "no":
        from stoker.pools.waiting import WaitingWorker

        worker = WaitingWorker(pipe, task)
    threading.Thread(target=_leave_with_trainer, args=(worker,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):  # the trainer is gone: leave too
        worker.live()


class Worker:
    """Steps its environments one after the other, its share of one group at a time.

    One thread does that: the main one, unless a step of its stalls. Then a relief goes on with the
    others until the main thread is back. The thread whose turn it is, is the `_holder`.
    """

    def __init__(self, pipe: Connection, task: Task) -> None:
        self._pipe, self._task = pipe, task
        board, number = task.board, task.number
        self._call, self._answer = board.calls[number], board.answer
        self._states, self._wish, self._beats = (
            part.data for part in (board.states, board.wish, board.beats)
        )
        self._worked = board.worked.data.cast("B").cast("d")
        self._slots: list[Slot] = []
        self._shares: list[_Share] = []
        self._last_share = -1
        self._queue: deque[Slot] = deque()  # a pop is atomic: no two threads get the same
        self._turn = threading.Lock()
        self._holder: object = self
        self._stint = 0
        self._current: Slot | None = None
        self._reliefs: list[threading.Thread] = []
        self._step_times: deque[float] = deque([0.0], maxlen=15)
        self._speech = threading.Lock()
        self._leaving = False

    def live(self) -> None:
        """From making environments to closing them."""
        try:
            self._make()
        except StokerError as error:
            self._say("failed", error)
            return
        try:
            self._say("ready", None)
            if self._task.stall_after > 0:
                threading.Thread(target=self._watch, daemon=True).start()
            self._serve(self)
        finally:
            self._leaving = True
            self._close()

    def _close(self) -> None:
        for slot in self._slots:
            slot.close_quietly()

    def _make(self) -> None:
        ids = [i for share in self._task.shares for i in share]
        with making(ids):
            make_env = pickle.loads(self._task.make_env)
            for share in self._task.shares:
                slots = self._make_slots(make_env, share)
                self._slots += slots
                self._shares.append(_Share(slots, self._states[share[0] : share[-1] + 1]))
        if self._task.stands is not None:
            for slot, (seed, episode) in zip(self._slots, self._task.stands, strict=True):
                slot.stand(seed, episode)

    def _make_slots(self, make_env: MakeEnvs, env_ids: list[int]) -> list[Slot]:
        rows = self._task.board.rows
        return [Slot(make_env, rows, i, self._note_reset) for i in env_ids]

    def _note_reset(self, env_id: int) -> None:
        self._states[env_id] = RESETTING

    # Stepping.

    def _serve(self, me: object) -> None:
        """Answer calls for as long as it is `me` who does so."""
        mail, number = self._task.board.mail, self._task.number
        while True:
            with self._turn:
                if self._holder is not me:
                    self._call.ring()  # which may have been meant for the one whose turn it is
                    return
                self._take()
            if self._queue:
                self._step_queued(me)
                self._answer_if_wished()
            elif me is self and mail[number]:
                mail[number] = 0
                if not self._read_mail():
                    return
            elif not self._call.wait(NAP_S) and me is self:
                self._look_for_mail()

    def _take(self) -> None:
        """Queue what was asked of one share, beginning with the one that was not served last."""
        count = len(self._shares)
        for step in range(1, count + 1):
            place = (self._last_share + step) % count
            if self._shares[place].take(self._queue):
                self._last_share = place
                return

    def _step_queued(self, me: object) -> None:
        queue, beats, number = self._queue, self._beats, self._task.number
        began, waiting = time.monotonic(), len(queue)
        while True:
            try:
                slot = queue.popleft()
            except IndexError:
                break
            self._current = slot
            self._stint += 1
            beats[number] = self._stint
            self._step(slot)
            if self._holder is not me and not self._take_back(me):
                break
        with self._turn:
            if self._holder is me:  # else it is another's
                self._current = None
        stepped, took = max(1, waiting - len(queue)), time.monotonic() - began
        self._step_times.append(took / stepped)
        self._worked[number] += took

    def _step(self, slot: Slot) -> None:
        """One environment, from STEPPING to DONE or CUT."""
        self._states[slot.index] = STEPPING
        try:
            self._show(slot, DONE if slot.answer(self._report) else CUT)
        except StokerError as error:
            self._say("failed", error)  # which ends the run: this row will not be waited for

    def _show(self, slot: Slot, end: int) -> None:
        """Say that a row is written."""
        if self._task.keep_infos:
            self._send_infos(slot)
        self._states[slot.index] = end

    def _send_infos(self, slot: Slot) -> None:
        if not slot.info and not slot.final_info:
            return
        self._task.board.noted[slot.index] = 1  # before it is sent, which may have to wait
        try:
            self._say("infos", (slot.index, slot.infos))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise EnvError(
                f"Environment {slot.index} returned an info that cannot be sent from its worker: "
                f"{type(error).__name__}: {error}. Keep plain values and arrays in it."
            ) from error

    def _answer_if_wished(self) -> None:
        """Wake the trainer once as many are done as it waits for, not for every share.

        Whoever is done last sees that all are. Should two not see each other's last write, the
        trainer looks by itself before long.
        """
        first, last, least = self._wish
        done = self._states[first:last].tobytes()
        if done.count(DONE) + done.count(CUT) >= least:
            self._answer.ring()

    def _report(self, error: EnvError) -> None:
        """Tell a fault that is about to be mended, or raise it if it is not to be."""
        if isinstance(error, BadValueError) and not self._task.truncate_bad_values:
            raise error
        if self._leaving:  # nobody waits for another episode
            raise error
        self._say("fault", error)

    # Relief.

    def _watch(self) -> None:
        """Hand the turn to another thread when a step takes far longer than steps do.

        The trainer sees first that nothing moves: a thread that looked every now and then would
        have to ask for the GIL, and each of NumPy's releases of it would become a system call.
        """
        alarm = self._task.board.alarms[self._task.number]
        while True:
            if not alarm.wait(_NEVER_S):
                continue
            look = (self._stint, self._current)
            usual = _MANY_TIMES * statistics.median(self._step_times)
            time.sleep(max(0.0, usual - self._task.stall_after))
            with self._turn:
                if look == (self._stint, self._current) and look[1] is not None:
                    self._relieve()

    def _relieve(self) -> None:
        relief = object()
        self._holder, self._current = relief, None
        self._stint += 1
        thread = threading.Thread(target=self._serve, args=(relief,), daemon=True)
        self._reliefs = [thread, *(other for other in self._reliefs if other.is_alive())]
        thread.start()

    def _take_back(self, me: object) -> bool:
        """The main thread takes its turn back, so that environments stay in it; others leave."""
        if me is not self:
            return False
        with self._turn:
            self._holder = self
            self._stint += 1
        return True

    # Control.

    def _say(self, kind: str, content: Any) -> None:
        # Whoever finds the trainer gone, in any thread, is quiet: the main thread sees it, too.
        with self._speech, contextlib.suppress(ConnectionError):
            self._pipe.send((kind, content))
        self._answer.ring()

    def _look_for_mail(self) -> None:
        """It is announced before it is written; this is for who looked in between, where it is too
        large for the pipe, so that it is written only while it is read."""
        if self._pipe.poll():
            self.look_at_mail()

    def look_at_mail(self) -> None:
        """Have the main thread do so, from any thread."""
        self._task.board.mail[self._task.number] = 1
        self._call.ring()

    def _read_mail(self) -> bool:
        """Do what the trainer wrote, in the main thread alone; whether to go on."""
        self._call.ring()  # a relief that waits for it sees that its turn is over
        for thread in self._reliefs:
            thread.join()
        while self._pipe.poll():
            kind, ticket, contents = self._pipe.recv()
            if kind == "close":
                return False
            try:
                self._say("reply", (ticket, self._do(kind, contents)))
            except StokerError as error:
                self._say("reply", (ticket, error))
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                unsent = EnvError(f"The result of {kind} cannot be sent: {error}")
                self._say("reply", (ticket, unsent))
        return True

    def _do(self, kind: str, contents: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Have each of some environments do something, with arguments each."""
        slots = {slot.index: slot for slot in self._slots}
        return [self._do_one(slots[i], kind, arguments) for i, arguments in contents.items()]

    def _do_one(self, slot: Slot, kind: str, arguments: tuple[Any, ...]) -> Any:
        result = getattr(slot, kind)(*arguments)
        if kind in ("start", "restart"):
            self._show(slot, IDLE)
        return result


class _Share:
    """A worker's environments of one group, which are neighbours."""

    def __init__(self, slots: list[Slot], states: memoryview) -> None:
        self._slots, self._states = slots, states
        self._all_asked, self._all_taken = (bytes([s]) * len(slots) for s in (ASKED, TAKEN))

    def take(self, queue: deque[Slot]) -> bool:
        """Put those that are asked for something in the queue; whether there are any."""
        seen = self._states.tobytes()
        if seen == self._all_asked:
            self._states[:] = self._all_taken
            queue.extend(self._slots)
            return True
        if ASKED not in seen and RENEW not in seen:
            return False
        for place, state in enumerate(seen):
            if state in (ASKED, RENEW):
                self._states[place] = TAKEN
                if state == RENEW:
                    self._slots[place].reject()
                queue.append(self._slots[place])
        return True


class _Aside(io.TextIOBase):
    """Standard output of a worker: what environments print goes to standard error."""

    def __init__(self, board: Board) -> None:
        self._told = board.told

    def write(self, text: str) -> int:
        if not self._told[0]:
            self._told[0] = 1
            sys.stderr.write(
                "An environment prints to standard output; in workers that goes to standard "
                "error, as the trainer's output may be read by a program.\n"
            )
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _leave_with_trainer(worker: Worker) -> None:
    """End this worker soon after the trainer has ended, even amid a step that hangs."""
    trainer = multiprocessing.parent_process()
    assert trainer is not None, "a worker has a parent"
    wait([trainer.sentinel])
    worker.look_at_mail()  # and find that the pipe has ended
    time.sleep(2.0)  # an environment that is well closes itself in this time
    os._exit(1)
