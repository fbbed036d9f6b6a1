"""Pools whose environments live in workers: who is asked, who is done, where each one stands."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from stoker.config.schema import FaultSettings
from stoker.errors import BadValueError, ConfigError, StokerError, WorkerError
from stoker.pools.base_crew import BaseCrew, Stand
from stoker.pools.board import ASKED, CUT, DONE, IDLE, RENEW
from stoker.pools.direct import DirectPool
from stoker.pools.faults import FaultLog
from stoker.pools.journal import replay_of
from stoker.pools.rows import EVERYONE, Rows, as_range
from stoker.pools.slot import MakeEnvs
from stoker.pools.values import ValueCheck
from stoker.types import EpisodeJournal, StepBatch

_SLICE_S = 0.02
"""How long to sleep at most before looking whether all is well."""


class CrewedPool(DirectPool):
    """Environments that a crew of workers steps, each with its row and a state byte.

    Whoever derives from it makes the crew. The pool writes actions and states, and asks the crew to
    have them done; it hands out the rows of those whose state says that they are.
    """

    elsewhere = True
    _crew: BaseCrew[Any]

    def __init__(
        self, rows: Rows, states: np.ndarray, settings: FaultSettings, keep_infos: bool
    ) -> None:
        super().__init__(rows.spec, rows.n_envs)
        self._rows, self._states, self._keep_infos = rows, states, keep_infos
        self._state_bytes = states.data
        self._log, self._check = FaultLog(settings), ValueCheck(rows, settings.check_bounds)
        self._seeds: list[int | None] = [0] * self.n_envs
        self._episodes = np.zeros(self.n_envs, np.int64)

    def _share_out(self, n_workers: int, alternate: bool) -> list[list[list[int]]]:
        """The environments of each worker, by group: two where each worker can have both."""
        n_envs = self.n_envs
        if alternate and n_envs >= 2 * n_workers:
            self.groups = (slice(0, n_envs // 2), slice(n_envs // 2, n_envs))
        # While this many gather, a worker still has others to step. Fewer would have the trainer
        # wake more often, each time at the cost of a worker's core and what its caches hold.
        self.handful = max(1, min(3 * n_envs // 8, (n_envs - n_workers) // 2))
        split = [np.array_split(self._everyone[group], n_workers) for group in self.groups]
        return [[part.tolist() for part in parts] for parts in zip(*split, strict=True)]

    def _start(self, whose: str, remedy: str) -> None:
        """Have the crew start; leave nobody behind if it cannot."""
        try:
            self._crew.start()
        except BaseException as error:  # Ctrl-C, too
            self.close()
            if isinstance(error, StokerError) or not isinstance(error, Exception):
                raise
            raise WorkerError(
                f"{whose} could not start: {type(error).__name__}: {error}. {remedy}"
            ) from error

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        starts = {i: (seed, *replay_of(journal, i, self.codec)) for i in range(self.n_envs)}
        self._crew.tell("start", starts, has_deadline=journal is None)
        self._seeds = [seed] * self.n_envs
        self._episodes[:] = [episode for _, episode, _ in starts.values()]
        batch = self._check.accept(self._rows.batch(), acted=False)
        if journal is not None:  # an episode that ended earlier than before made way for the next
            self._episodes += ~batch.valid & (journal.length >= 0)
        return self._with_infos(batch)

    def restart(
        self,
        env_ids: np.ndarray,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None = None,
    ) -> StepBatch:
        self._refuse_busy(env_ids)
        for env_id, seed in zip(env_ids.tolist(), seeds, strict=True):
            self._seeds[env_id] = seed
        self._crew.tell("restart", {i: (self._seeds[i], options) for i in env_ids.tolist()})
        for env_id in env_ids.tolist():
            self._seeds[env_id] = None
        batch = self._rows.batch(as_range(env_ids))
        return self._with_infos(self._check.accept(batch, acted=False))

    def ask(self, what: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        return self._crew.tell(what, dict(arguments), has_deadline=False)

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        self._refuse_busy(env_ids)
        self._rows.action[env_ids] = self.codec.encode(actions)
        self._states[env_ids] = ASKED
        self._crew.ring_for(env_ids)

    def _refuse_busy(self, env_ids: np.ndarray) -> None:
        if np.count_nonzero(self._states.take(env_ids)):  # who is idle is 0
            busy = env_ids[self._states[env_ids] != IDLE].tolist()
            raise ConfigError(
                f"Environments {busy} have not answered their last action; receive them first."
            )

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        first, last, _ = (among or EVERYONE).indices(self.n_envs)
        deadline = math.inf if patience is None else time.monotonic() + patience
        self._crew.expect(first, last, at_least)
        while True:
            self._crew.attend()
            pick = self._ready(first, last, at_least, deadline)
            batch = None if pick is None else self._hand_out(pick)
            if batch is not None:
                self._crew.expect(first, last, self.n_envs + 1)  # nobody, until the next time
                return batch

    def _ready(
        self, first: int, last: int, at_least: int, deadline: float
    ) -> slice | np.ndarray | None:
        """Those in a range that are done, if there are enough or it is time; else a short sleep."""
        states = self._state_bytes[first:last].tobytes()
        done = states.count(DONE) + states.count(CUT)
        if done == len(states):
            return slice(first, last)
        left = deadline - time.monotonic()
        if done < at_least and done + states.count(IDLE) < len(states) and left > 0:
            self._crew.wait(min(_SLICE_S, left))
            return None
        return as_range((np.frombuffer(states, np.uint8) >= DONE).nonzero()[0] + first)

    def _hand_out(self, pick: slice | np.ndarray) -> StepBatch | None:
        """The rows of these environments; None if some are refused, and asked to be renewed."""
        batch = self._rows.batch(pick)
        if CUT in self._states[pick].tobytes():
            self._crew.hear(batch.env_ids)  # why
        refused = self._check.faults(batch)
        for row, sentence in refused.items():
            self._log.note_env(BadValueError(sentence))
            self._states[batch.env_ids[row]] = RENEW
        if refused:
            self._crew.ring_for(batch.env_ids)
            return None
        over = batch.terminated | batch.truncated
        if 1 in over.tobytes():
            self._episodes[pick] += over
        self._states[pick] = IDLE
        self._crew.forget(pick)
        return self._with_infos(batch)

    def _with_infos(self, batch: StepBatch) -> StepBatch:
        if self._keep_infos:
            self.last_infos = self._crew.take_infos(batch)
        return batch

    def _stand_of(self, env_id: int) -> Stand:
        """The seed of an environment, and its episode as whoever receives its rows counts them."""
        ended = self._rows.terminated[env_id] or self._rows.truncated[env_id]
        untold = int(self._states[env_id] >= DONE and ended)
        return self._seeds[env_id], int(self._episodes[env_id]) + untold

    def faults(self) -> dict[str, int]:
        return dict(self._log.counts)

    def worked(self) -> float | None:
        return self._crew.worked()

    def close(self) -> None:
        self._crew.dismiss()

    def __del__(self) -> None:
        """Workers must not outlive the pool: its memory is given to the next one."""
        with contextlib.suppress(Exception):
            self.close()


def pickled(make_env: MakeEnvs) -> bytes:
    """How to make environments, for workers."""
    try:
        with _script_by_value():
            return cloudpickle.dumps(make_env)
    except Exception as error:
        raise WorkerError(
            f"The environment cannot be sent to worker processes: {type(error).__name__}: {error}. "
            "Make what cannot be pickled (a lock, a socket, an open file) inside the environment, "
            "or step it in this process (--pool inline)."
        ) from error


@contextlib.contextmanager
def _script_by_value() -> Iterator[None]:
    """What a script defines goes by value, as workers do not run it; in a process that was spawned,
    where the script has another name, cloudpickle would send no more than that."""
    script = sys.modules.get("__mp_main__")
    if script is None or script.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(script)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(script)
