"""The workers of a Ray pool: actors, started where there is room, heard, watched and replaced."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stoker.config.schema import FaultSettings
from stoker.errors import EnvError, StokerError, WorkerError
from stoker.pools.base_crew import GRACE_S, LISTEN_EVERY_S, BaseCrew, BaseHand, Stand
from stoker.pools.board import ASKED, DONE, IDLE, RENEW, TAKEN
from stoker.pools.cluster import surroundings
from stoker.pools.faults import FaultLog
from stoker.pools.launch import ONE_THREAD
from stoker.pools.ray_places import Places
from stoker.pools.ray_worker import Glance, RayTask, RayWorker, Told, write_step
from stoker.pools.rows import Rows

_WATCH = "watch"
"""The thread of an actor that answers while the other one steps."""
_GLANCE_S = 1.0
"""How long an answer may take before its worker is asked what it is doing, and how often."""
_PLACE_S = 10.0
"""In which an actor must live on the machine that it was meant for; else that one is lost, too."""

Kind = Literal["where", "make", "step", "renew", "do", "glance"]


@dataclass(eq=False)
class Errand:
    """What an actor was asked, and has not answered."""

    number: int
    hand: RayHand
    kind: Kind
    env_ids: np.ndarray
    ticket: int
    sent: float = field(default_factory=time.monotonic)
    void: bool = False  # nobody wants the answer any more


@dataclass(eq=False)
class RayHand(BaseHand):
    """A worker as the trainer sees it."""

    actor: Any
    node: str | None  # the machine that it is on, or meant for
    claim: float  # of a core, as Ray counts them
    lives: bool = False
    errands: set[Errand] = field(default_factory=set)
    glanced: float = 0.0


class RayCrew(BaseCrew[RayHand]):
    """One actor for each worker; `task` is what all have in common.

    Answers arrive in a thread of Ray's, which queues them; whoever receives from the pool takes
    them in.
    """

    def __init__(
        self,
        ray: Any,
        task: RayTask,
        rows: Rows,
        states: np.ndarray,
        shares: list[list[list[int]]],
        settings: FaultSettings,
        log: FaultLog,
        stand_of: Callable[[int], Stand],
        places: Places,
    ) -> None:
        super().__init__(shares, rows.n_envs, settings, log, stand_of)
        self._ray, self._task, self._rows, self._states = ray, task, rows, states
        self._places, self._claim = places, places.claim(len(shares))
        self._remote = ray.remote(concurrency_groups={_WATCH: 1})(RayWorker)
        self._shares = [np.array(share) for owned in shares for share in owned]
        self._share_of = np.zeros(rows.n_envs, np.int64)
        for place, share in enumerate(self._shares):
            self._share_of[share] = place
        self._answers: queue.SimpleQueue[tuple[Errand, Any]] = queue.SimpleQueue()
        self._vacant_since = [0.0] * len(shares)  # 0: the place is taken
        self._worked = self._looked = 0.0

    @property
    def n_machines(self) -> int:
        """How many machines they are on."""
        return len({hand.node for hand in self._hands})

    def start(self) -> None:
        for number in range(len(self._owned)):
            self._hire(number, None, None, self._claim)
        while not all(hand.ready for hand in self._hands):
            self._listen(0.05, mend=False)
            self._check_starts(mend=False)

    def _hire(
        self, number: int, stands: list[Stand] | None, node: str | None, claim: float
    ) -> None:
        """Start an actor, on a machine or wherever Ray has room, and do not wait for it."""
        where: Any = "SPREAD"
        if node is not None:
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            where = affinity(node, soft=False)
        threads = {name: os.environ.get(name, one) for name, one in ONE_THREAD.items()}
        actor = self._remote.options(
            num_cpus=claim,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=where,
            runtime_env={"env_vars": {**surroundings(), **threads}},
        ).remote(self._task._replace(env_ids=self._owned[number], stands=stands))
        hand = RayHand(actor, node, claim)
        if number == len(self._hands):
            self._hands.append(hand)
        self._hands[number] = hand
        self._vacant_since[number] = self._vacant_since[number] or hand.started
        self._ask(number, "where")
        self._ask(number, "make")

    def dismiss(self) -> None:
        self._dismissed = True
        try:
            if self._ray.is_initialized():  # else asking would begin a cluster of Ray's own
                leaving = [hand.actor.close.remote() for hand in self._hands if hand.ready]
                if leaving:
                    self._ray.wait(leaving, num_returns=len(leaving), timeout=GRACE_S)
        finally:
            with self._hiring:
                while self._hands:
                    self._kill(self._hands[-1])
                    self._hands.pop()

    def _kill(self, hand: RayHand) -> None:
        with contextlib.suppress(Exception):  # it may have died, or its machine
            if self._ray.is_initialized():
                self._ray.kill(hand.actor)

    # Asking and listening.

    def ring_for(self, env_ids: np.ndarray) -> None:
        self._refuse_if_dismissed()
        for place in set(self._share_of[env_ids].tolist()):
            share = self._shares[place]
            states = self._states[share]
            for state, kind in ((ASKED, "step"), (RENEW, "renew")):
                asked = share[states == state]
                if asked.size:
                    self._states[asked] = TAKEN
                    number = int(self._worker_of[asked[0]])
                    self._ask(number, kind, write_step(self._rows, asked), env_ids=asked)

    def _ask(
        self,
        number: int,
        kind: Any,
        *given: Any,
        env_ids: np.ndarray | None = None,
        ticket: int = 0,
    ) -> None:
        """Send an actor a message; its answer will be queued."""
        hand = self._hands[number]
        call = getattr(hand.actor, kind)
        if kind == "glance":
            call = call.options(concurrency_group=_WATCH)
        errand = Errand(number, hand, kind, np.empty(0) if env_ids is None else env_ids, ticket)
        hand.errands.add(errand)
        answers = self._answers
        call.remote(*given).future().add_done_callback(lambda done: answers.put((errand, done)))

    def _post(self, number: int, kind: str, ticket: int, contents: dict[int, Any]) -> None:
        env_ids = np.fromiter(contents, np.int64)
        if kind == "start":  # whatever was amid a step begins anew
            for errand in self._hands[number].errands:
                errand.void |= errand.kind in ("step", "renew")
        self._ask(number, "do", kind, pickle.dumps(contents), env_ids=env_ids, ticket=ticket)

    def wait(self, seconds: float) -> None:
        self._listen(seconds)

    def _listen(self, seconds: float, mend: bool = True) -> None:
        self._refuse_if_dismissed()
        with contextlib.suppress(queue.Empty):
            self._take_in(*self._answers.get(seconds > 0, seconds), mend)
            while True:
                self._take_in(*self._answers.get(False), mend)

    def _take_in(self, errand: Errand, done: Any, mend: bool) -> None:
        """Take in an answer, or that there will be none."""
        hand, number = errand.hand, errand.number
        hand.errands.discard(errand)
        if self._dismissed or self._hands[number] is not hand:  # another has its place
            return
        try:
            answer = done.result()
        except self._ray.exceptions.RayError as error:
            self._bury(number, error, mend)
            return
        match errand.kind:
            case "where":
                hand.node, hand.lives = answer, True
                self._places.find(answer)
            case "make":
                self._hear_made(number, answer, mend)
            case "step" | "renew" if not errand.void:
                self._hear_step(errand.env_ids, answer)
            case "do":
                reply, shown = pickle.loads(answer[0]), answer[1]
                hand.replies = {errand.ticket: self._shown(errand.env_ids, shown) or reply}
            case "glance":
                self._hear_glance(number, pickle.loads(answer), mend)

    def _hear_made(self, number: int, error: StokerError | None, mend: bool) -> None:
        hand = self._hands[number]
        if error is None:
            hand.ready, self._vacant_since[number] = True, 0.0
        elif not mend:
            raise error
        else:
            self._log.note_env(error)
            self._replace(number)

    def _hear_step(self, env_ids: np.ndarray, answer: bytes) -> None:
        place = self._rows.from_bytes(env_ids, answer)
        self._worked += float(np.frombuffer(answer, np.float64, 1, place)[0])
        self._states[env_ids] = DONE
        if len(answer) > place + 8:
            told = self._hear_beside(answer[place + 8 :])
            self._states[list(told.failed)] = IDLE
            for fault in told.faults:
                self._log.note_env(fault)
            for error in told.failed.values():
                raise error

    def _hear_beside(self, answer: bytes) -> Told:
        told: Told = pickle.loads(answer)
        self.infos |= {env_id: pickle.loads(infos) for env_id, infos in told.infos.items()}
        return told

    def _shown(self, env_ids: np.ndarray, shown: bytes) -> StokerError | None:
        """Write the rows of episodes that were begun, if any were; what was wrong with them."""
        if not shown:
            return None
        place = self._rows.from_bytes(env_ids, shown)
        self._states[env_ids] = IDLE
        failed = self._hear_beside(shown[place:]).failed if len(shown) > place else {}
        return next(iter(failed.values()), None)

    def worked(self) -> float:
        return self._worked

    # Watching and mending.

    def attend(self) -> None:
        now = time.monotonic()
        if now - self._looked < LISTEN_EVERY_S:
            return
        self._looked = now
        self._listen(0.0)
        self._check_starts()
        self._look_after()

    def _refuse_hangs(self) -> None:
        self._look_after(mend=False)

    def _look_after(self, mend: bool = True) -> None:
        """Ask workers that take long what they are doing; end those that do not even say so."""
        now = time.monotonic()
        longest = max(self._settings.step_deadline, self._settings.reset_deadline)
        for number, hand in enumerate(self._hands):
            if not hand.ready or not hand.errands:
                continue
            oldest = min(errand.sent for errand in hand.errands)
            asked = [errand.sent for errand in hand.errands if errand.kind == "glance"]
            if asked and now - asked[0] > longest:
                self._end_hang(number, self._describe_silence(number, longest), mend)
            elif not asked and now - max(oldest, hand.glanced) > _GLANCE_S:
                hand.glanced = now
                self._ask(number, "glance")

    def _hear_glance(self, number: int, seen: Glance, mend: bool) -> None:
        for fault in seen.faults:
            self._log.note_env(fault)
        if seen.hang is not None:
            self._end_hang(number, seen.hang, mend)

    def _end_hang(self, number: int, error: StokerError, mend: bool) -> None:
        if not mend:
            raise error
        self._log.note("hangs", error)
        self._replace(number)

    def _describe_silence(self, number: int, seconds: float) -> EnvError:
        return EnvError(
            f"One of the environments {_listed(self._owned[number])} hangs: their worker has not "
            f"said for {seconds:g} s what it is doing (--step-deadline, --reset-deadline), as "
            "happens where compiled code keeps Python's global lock."
        )

    def _check_starts(self, mend: bool = True) -> None:
        now, deadline = time.monotonic(), self._settings.start_deadline
        for number, hand in enumerate(self._hands):
            if hand.ready:
                continue
            if not hand.lives and now - self._vacant_since[number] > deadline:
                raise self._describe_vacancy(number)
            if not hand.lives and hand.node is not None and now - hand.started > _PLACE_S:
                self._places.lose(hand.node)
                self._replace(number)
            elif hand.lives and now - hand.started > deadline:
                error = WorkerError(
                    f"Environments {_listed(self._owned[number])} are still being made after "
                    f"{deadline:g} s (--start-deadline), on {self._places.name(hand.node)}."
                )
                self._end_hang(number, error, mend)

    def _describe_vacancy(self, number: int) -> WorkerError:
        return WorkerError(
            f"The Ray cluster had no room for the worker of environments "
            f"{_listed(self._owned[number])} within {self._settings.start_deadline:g} s "
            f"(--start-deadline). It has {self._places.room()}. Add a machine (`ray start "
            "--address HOST:6379`), end what else runs there, or use fewer workers (--n-workers)."
        )

    def _bury(self, number: int, error: Exception, mend: bool) -> None:
        """An actor, or the machine that it was on, is gone."""
        self._refuse_if_dismissed()  # else it is no fault
        hand, places = self._hands[number], self._places
        lost, known = places.is_lost(hand.node, error), places.knows_lost(hand.node)
        described = self._describe_loss(number, error, lost)
        if not mend:
            raise described
        if lost and hand.node is not None:
            places.lose(hand.node)
        if not (lost and (known or not hand.lives)):  # a machine is one fault, with all its workers
            self._log.note("worker_deaths", described)
        self._replace(number)

    def _describe_loss(self, number: int, error: Exception, lost: bool) -> WorkerError:
        hand, ids = self._hands[number], _listed(self._owned[number])
        where, said = self._places.name(hand.node), textwrap.shorten(str(error), 600)
        if lost and hand.lives:
            there = zip(self._hands, self._owned, strict=True)
            gone = sorted(i for other, owned in there for i in owned if other.node == hand.node)
            return WorkerError(
                f"Of the Ray cluster, {where} is lost, and with it environments {_listed(gone)}. "
                f"Ray says: {said}"
            )
        remedy = (
            "If the system killed it for want of memory, use fewer environments."
            if hand.lives
            else "Stoker and the environment must be installed on every machine of the cluster: "
            "pip install 'stoker[ray]'."
        )
        return WorkerError(
            f"The worker of environments {ids}, on {where} of the Ray cluster, died. {remedy} Ray "
            f"says: {said}"
        )

    def _replace(self, number: int) -> None:
        """End an actor, and start another in its place, without waiting for it.

        Each of its environments answers the action that it owes a row for, or else its next one,
        with the beginning of a new episode.
        """
        with self._hiring:
            self._refuse_if_dismissed()
            hand, owned = self._hands[number], np.array(self._owned[number])
            self._kill(hand)
            stands = [self._stand_of(i) for i in owned.tolist()]
            states = self._states[owned]
            self._states[owned] = np.where((states > IDLE) & (states < DONE), ASKED, states)
            self._vacant_since[number] = self._vacant_since[number] or time.monotonic()
            others = [other.node for other in self._hands if other is not hand]
            node = self._places.after(hand.node, others)
            # Where a machine was lost, the others may be full by Ray's account: they take more.
            claim = hand.claim if node == hand.node else 0.0 if node else self._claim
            self._hire(number, stands, node, claim)
            self.ring_for(owned)


def _listed(env_ids: list[int]) -> str:
    return ", ".join(map(str, env_ids))
