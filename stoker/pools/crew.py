"""The workers of a process pool: started, listened to, watched, and replaced when they fail."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import psutil

from stoker.config.schema import FaultSettings
from stoker.errors import EnvError, WorkerError
from stoker.pools.base_crew import GRACE_S, LISTEN_EVERY_S, BaseCrew, BaseHand, Stand
from stoker.pools.blame import circumstances
from stoker.pools.board import ASKED, DONE, IDLE, RESETTING, STEPPING, Board
from stoker.pools.faults import FaultLog
from stoker.pools.launch import starting_workers
from stoker.pools.rows import Infos
from stoker.pools.worker import Task, Waits, work
from stoker.types import StepBatch

_LOOK_AGAIN_S = 0.01


@dataclass
class Hand(BaseHand):
    """A worker as the trainer sees it."""

    process: Any
    pipe: Connection
    stacks: Connection  # where a worker that is asked to writes what its threads are doing
    itself: psutil.Process | None
    """The same process, known without the server that forked it, which tells of its end until its
    own; None if it was gone at once."""
    half_written: bool = False
    """Whether a message to it is under way, or was broken off."""

    @property
    def lost(self) -> bool:
        """Whether it goes on though it was said to have ended, as the server has."""
        said = self.process.exitcode is not None
        return said and self.itself is not None and _runs(self.itself)

    def leave(self, deadline: float) -> None:
        """Wait until it has ended, or until `deadline`."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        while self.lost and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)


class Crew(BaseCrew[Hand]):
    """Workers that are processes of this machine, and share a board with the trainer."""

    def __init__(
        self,
        make_env: bytes,
        board: Board,
        context: Any,
        shares: list[list[list[int]]],
        settings: FaultSettings,
        log: FaultLog,
        stand_of: Callable[[int], Stand],
        keep_infos: bool,
        waits: Waits,
    ) -> None:
        n_envs = board.rows.n_envs
        super().__init__(shares, n_envs, settings, log, stand_of)
        self._make_env, self._board, self._context, self._shares = make_env, board, context, shares
        self._keep_infos = keep_infos
        self._waits: Waits = waits
        self._look_every = min(settings.stall_after or math.inf, LISTEN_EVERY_S)
        self._looked = self._listened = 0.0
        self._beats, self._moved = board.beats.copy(), np.zeros(len(shares))
        self._seen = np.zeros(n_envs, np.uint8)
        self._busy_since = np.zeros(n_envs)  # 0: it was not when last looked at

    def start(self) -> None:
        self._board.answer.clear()
        with starting_workers(self._context):
            for number in range(len(self._shares)):
                self._hands.append(self._launch(number, None))
        while not all(hand.ready for hand in self._hands):
            self._listen(0.05, mend=False)
            self._check_starts(mend=False)

    def _launch(self, number: int, stands: list[Stand] | None) -> Hand:
        ours, theirs = self._context.Pipe()
        stacks, their_stacks = self._context.Pipe(duplex=False)
        self._board.calls[number].clear()
        self._board.alarms[number].clear()
        self._board.mail[number] = 0
        task = Task(
            number,
            self._shares[number],
            self._make_env,
            self._board,
            stands,
            self._settings.bad_values == "truncate",
            self._settings.stall_after,
            self._keep_infos,
            self._waits,
        )
        process = self._context.Process(
            target=work,
            args=(theirs, their_stacks, task),
            name=f"stoker-env-worker-{number}",
            daemon=True,
        )
        try:
            process.start()
        except (OSError, EOFError) as error:  # the server has died just now
            raise WorkerError(
                f"The worker of environments {', '.join(map(str, self._owned[number]))} could not "
                f"be started: {type(error).__name__}: {error}. Something ends Stoker's processes: "
                "see what else runs on this machine, and how much memory is left."
            ) from error
        theirs.close()  # so that the pipe ends when the worker does
        their_stacks.close()
        itself = None
        with contextlib.suppress(psutil.NoSuchProcess):
            itself = psutil.Process(process.pid)
        return Hand(process, ours, stacks, itself)

    def dismiss(self) -> None:
        self._dismissed = True
        try:
            for number, hand in enumerate(self._hands):
                if not hand.half_written:
                    self._post(number, "close", 0, {})
            deadline = time.monotonic() + GRACE_S
            for hand in self._hands:
                hand.leave(deadline)
        finally:
            with self._hiring:
                while self._hands:
                    _end(self._hands[-1])
                    self._hands.pop()

    # Asking and listening.

    def ring_for(self, env_ids: np.ndarray) -> None:
        for number in set(self._worker_of[env_ids].tolist()):
            self._board.calls[number].ring()

    def expect(self, first: int, last: int, least: int) -> None:
        self._board.wish[:] = first, last, least

    def wait(self, seconds: float) -> None:
        self._board.answer.wait(seconds)
        if 1 in self._board.noted.tobytes():  # a tenth of the cost of `any`
            self._listen(0.0)  # a worker whose pipe is full waits for that

    def _post(self, number: int, kind: str, ticket: int, contents: dict[int, Any]) -> None:
        hand, message = self._hands[number], ForkingPickler.dumps((kind, ticket, contents))
        self._announce_mail(number)  # what is too large for the pipe has to be read meanwhile
        with contextlib.suppress(OSError):  # whoever has just died is noticed elsewhere
            hand.half_written = True
            hand.pipe.send_bytes(message)
            hand.half_written = False
        self._announce_mail(number)  # it may have looked before there was any

    def _announce_mail(self, number: int) -> None:
        self._board.mail[number] = 1
        self._board.calls[number].ring()

    def take_infos(self, batch: StepBatch) -> list[Infos]:
        ids, noted = batch.env_ids, self._board.noted
        if noted[ids].any():
            self.hear(ids)
        noted[ids] = 0
        return super().take_infos(batch)

    def hear(self, env_ids: np.ndarray) -> None:
        for number in set(self._worker_of[env_ids].tolist()):
            self._read(number, mend=True)

    def worked(self) -> float:
        return float(self._board.worked.sum())

    def _listen(self, seconds: float, mend: bool = True) -> None:
        ends = [end for hand in self._hands for end in (hand.pipe, hand.process.sentinel)]
        heard = set(wait(ends, seconds))
        for number, hand in enumerate(self._hands):
            if heard.isdisjoint((hand.pipe, hand.process.sentinel)):
                continue
            alive = self._read(number, mend)
            if not alive or hand.process.sentinel in heard:
                self._bury(number, mend)

    def _read(self, number: int, mend: bool) -> bool:
        """Take in the messages of a worker; False if its pipe has ended."""
        hand = self._hands[number]
        try:
            while hand.pipe.poll():
                kind, content = hand.pipe.recv()
                if kind == "ready":
                    hand.ready = True
                elif kind == "reply":
                    hand.replies = dict([content])  # older ones are of calls that failed
                elif kind == "infos":
                    self.infos[content[0]] = content[1]
                elif kind == "fault":
                    self._log.note_env(content)
                elif hand.ready or not mend:
                    raise content
                else:  # to make its environments again: another is tried when it has left
                    hand.failed = True
                    self._log.note_env(content)
        except (EOFError, OSError):
            return False
        return True

    # Watching and mending.

    def attend(self) -> None:
        """As in every crew; and wake who stalls."""
        now = time.monotonic()
        if now - self._looked < self._look_every:
            return
        self._looked = now
        self._refuse_if_dismissed()
        if self._settings.stall_after > 0:
            self._look_for_stalls(now)
        if now - self._listened < LISTEN_EVERY_S:
            return
        self._listen(0.0)
        self._check_starts()
        for env_id in self._late():
            if self._board.states[env_id] in (STEPPING, RESETTING):  # not yet ended by another's
                error = self._describe_hang(env_id)
                self._log.note("hangs", error)
                self._replace(int(self._worker_of[env_id]))
        self._listened = time.monotonic()

    def _look_for_stalls(self, now: float) -> None:
        """Alarm workers that have not moved for `stall_after`, amid a step."""
        states, beats = self._board.states, self._board.beats.copy()
        self._moved[beats != self._beats] = now
        self._beats = beats
        still = now - self._moved >= self._settings.stall_after
        if still.any():
            amid = (states == STEPPING) | (states == RESETTING)
            for number in set(self._worker_of[amid & still[self._worker_of]].tolist()):
                self._board.alarms[number].ring()
                self._moved[number] = now

    def forget(self, pick: slice | np.ndarray) -> None:
        self._busy_since[pick] = 0.0

    def _late(self) -> list[int]:
        """Environments that have been seen in one step, or one reset, past its deadline."""
        states, now = self._board.states.copy(), time.monotonic()
        busy = (states == STEPPING) | (states == RESETTING)
        self._busy_since[busy & ((states != self._seen) | (self._busy_since == 0.0))] = now
        self._busy_since[~busy] = 0.0
        self._seen = states
        deadlines = self._settings.reset_deadline, self._settings.step_deadline
        over = now - self._busy_since > np.where(states == RESETTING, *deadlines)
        return np.flatnonzero(busy & over).tolist()

    def _refuse_hangs(self) -> None:
        for env_id in self._late():
            raise self._describe_hang(env_id)

    def _describe_hang(self, env_id: int) -> EnvError:
        hand = self._hands[self._worker_of[env_id]]
        resets = self._board.states[env_id] == RESETTING
        call, setting = ("reset", "reset_deadline") if resets else ("step", "step_deadline")
        rows = self._board.rows
        led_there = circumstances(rows.seed_of(env_id), None if resets else rows.action[env_id])
        return EnvError(
            f"Environment {env_id} hangs in {call}(): it has taken more than "
            f"{getattr(self._settings, setting):g} s (--{setting.replace('_', '-')}). {led_there} "
            f"What its worker (process {hand.process.pid}) is doing:\n{_stack_of(hand)}"
        )

    def _check_starts(self, mend: bool = True) -> None:
        deadline = time.monotonic() - self._settings.start_deadline
        late = [n for n, h in enumerate(self._hands) if not h.ready and h.started < deadline]
        if not late:
            return
        stacks = "\n".join(_stack_of(self._hands[number]) for number in late)
        error = WorkerError(
            "Worker processes did not start in time: environments "
            f"{[i for number in late for i in self._owned[number]]} are still being made after "
            f"{self._settings.start_deadline:g} s (--start-deadline).\n{stacks}"
        )
        if not mend:
            raise error
        self._log.note("hangs", error)
        for number in late:
            self._replace(number)

    def _bury(self, number: int, mend: bool) -> None:
        self._refuse_if_dismissed()  # else it is no fault
        hand = self._hands[number]
        hand.process.join(1.0)
        whose = f"The worker of environments {', '.join(map(str, self._owned[number]))}"
        died = f"(process {hand.process.pid}) died with exit code {hand.process.exitcode}"
        if hand.lost:
            died = f"(process {hand.process.pid}) is lost: the server that workers come from died"
        error = WorkerError(
            f"{whose} {died}. If the system killed it for want of memory, use fewer environments."
        )
        if not mend:
            raise error
        if not hand.failed:  # else its own error was noted
            self._log.note("worker_deaths", error)
        self._replace(number)

    def _replace(self, number: int) -> None:
        """End a worker, and start another in its place, without waiting for it.

        Each of its environments answers the action that it owes a row for, or else its next one,
        with the beginning of a new episode.
        """
        with self._hiring:
            self._refuse_if_dismissed()
            hand, owned = self._hands[number], self._owned[number]
            _end(hand)  # before another writes to its rows
            stands = [self._stand_of(i) for i in owned]
            states = self._board.states[owned]
            self._board.states[owned] = np.where((states > IDLE) & (states < DONE), ASKED, states)
            with starting_workers(self._context):
                self._hands[number] = self._launch(number, stands)


def _end(hand: Hand) -> None:
    if hand.process.is_alive():
        hand.process.kill()
        hand.process.join()
    if hand.itself is not None and hand.lost:
        with contextlib.suppress(psutil.Error):  # it may have ended by now
            hand.itself.kill()
        hand.leave(time.monotonic() + GRACE_S)
    hand.pipe.close()
    hand.stacks.close()


def _runs(process: psutil.Process) -> bool:
    """False, too, if another process has its number by now, or if nobody has buried it yet."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _stack_of(hand: Hand) -> str:
    """What the threads of a worker are doing, as far as it can be found out."""
    if sys.platform == "win32":
        return "  (not to be found out on this system)"
    with contextlib.suppress(OSError):
        os.kill(hand.process.pid, signal.SIGUSR1)
        pieces: list[bytes] = []
        while hand.stacks.poll(0.5 if not pieces else 0.05):
            pieces.append(os.read(hand.stacks.fileno(), 65536))
            if not pieces[-1]:
                break
        if any(pieces):
            return b"".join(pieces).decode(errors="replace").rstrip()
    return "  (it did not answer)"
