"""Filling a rollout: act for one group of environments while another steps."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.collect.acting import Acting, CapturedActing, Place
from stoker.collect.episodes import EpisodeTracker, MetricSums
from stoker.errors import GatheringInterruptedError
from stoker.pools.journal import JournalKeeper
from stoker.storage.staged import StagedStorage
from stoker.types import Clock, EpisodeJournal, Policy, Pool, StepBatch

_NOT_ASKED, _ELSEWHERE = -1, -2  # whose step an environment is busy with: none, another rollout's
_TAIL, _SHORTEST_TAIL_S = 0.05, 0.02

Wanted = Callable[[], bool]


class Gathered(NamedTuple):
    """What came of filling a rollout, besides the rollout."""

    steps: int  # transitions
    late: int  # decisions whose outcome did not come in time, and were dropped
    metrics: MetricSums
    episodes: dict[str, float]  # means of the last ones that ended


class Gatherer:
    """Steps a pool under a policy, one rollout at a time.

    Groups alternate, in a fixed order, and all of a group is waited for: the result does not depend
    on who is quick.
    """

    def __init__(
        self, pool: Pool, policy: Policy, clock: Clock, seed: int, device: torch.device
    ) -> None:
        self.pool, self.policy, self.clock, self.seed = pool, policy, clock, seed
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.episodes = EpisodeTracker(pool.n_envs)
        action = pool.spec.action
        self._journal = JournalKeeper(pool.n_envs, action.width, action.stored_dtype)
        self._ids = np.arange(pool.n_envs)
        self.groups = pool.groups
        self._actions = np.zeros((pool.n_envs, action.width), action.stored_dtype)
        self._step_of = np.full(pool.n_envs, _NOT_ASKED)
        pool.reset(seed)
        acting = CapturedActing if device.type == "cuda" else Acting
        self._acting = acting(pool, policy, device)

    def begin(self, storage: StagedStorage, version: int) -> None:
        """A rollout under the policy's present weights, called `version`; `complete` it next."""
        with self.on_its_stream(), self.clock.phase("store"):
            storage.begin(version)
            self._acting.begin(storage)
            self._set_off(storage)

    def _set_off(self, storage: StagedStorage) -> None:
        """Have whoever need not wait for another step."""

    def complete(self, storage: StagedStorage, wanted: Wanted = lambda: True) -> Gathered:
        """T steps of everyone."""
        with self.on_its_stream(), self.clock.phase("store"):
            metrics = MetricSums()
            late = self._gather(storage, metrics, wanted)
            storage.end({k: torch.from_numpy(v) for k, v in self.pool.seen[0].items()})
            if self.stream is not None:
                self.stream.synchronize()  # sync: the rollout is handed to another stream
        return Gathered(storage.steps_taken, late, metrics, self.episodes.metrics())

    def _gather(self, storage: StagedStorage, metrics: MetricSums, wanted: Wanted) -> int:
        """Fill all rows; how many decisions were dropped."""
        for t in range(storage.n_steps + 1):
            if not wanted():
                raise GatheringInterruptedError
            for group in self.groups:
                if t > 0:
                    with self.clock.phase("env"):
                        batch = self.pool.recv(group.stop - group.start, group)
                if t < storage.n_steps:
                    with self.clock.phase("inference"):
                        self._acting.start(storage, t, group)
                if t > 0:  # while the device decides
                    storage.write_outcome(t - 1, batch)
                    self._count(batch, metrics)
                if t < storage.n_steps:
                    self._send_on(group)
        return 0

    def _send_on(self, place: Place) -> None:
        """Have those who were acted for step."""
        with self.clock.phase("inference"):
            actions = self._acting.finish()
        with self.clock.phase("env"):
            self._actions[place] = actions
            self.pool.send(actions, self._ids[place])

    def _count(self, batch: StepBatch, metrics: MetricSums) -> None:
        """Remember what the rollout does not hold."""
        self.episodes.take(batch)
        self._journal.take(self._actions[batch.env_ids], batch)
        metrics.take(batch)

    def on_its_stream(self) -> AbstractContextManager[object]:
        """Where its work on a GPU is queued, apart from the learner's."""
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to go on from here, by name; copies."""
        journal = self._journal.journal()._asdict()
        last = {f"last_obs.{leaf}": value.copy() for leaf, value in self.pool.seen[0].items()}
        episodes = {name: value.copy() for name, value in self.episodes.state().items()}
        noise = {"noise_rng": self.policy.generator.get_state().numpy()}
        busy = self._step_of != _NOT_ASKED  # what they see is not where they stand
        return {**episodes, **journal, **last, **noise, "busy": busy}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Bring every environment back to where it stood; those that began anew, by number."""
        journal = EpisodeJournal(state["episode"], state["length"], state["actions"])
        self.policy.generator.set_state(torch.from_numpy(state["noise_rng"]))
        self.episodes.restore(state)
        batch = self.pool.reset(self.seed, journal)
        arrived = batch.valid.copy()
        restarted = np.flatnonzero(~arrived)
        self._journal.restore(journal, restarted)
        self.episodes.forget(restarted)
        for leaf, value in batch.obs.items():
            same = value == state[f"last_obs.{leaf}"]
            arrived &= same.reshape(len(same), -1).all(axis=1) | state["busy"]
        if not arrived.all():
            warnings.warn(
                f"{int((~arrived).sum())} of {len(arrived)} environments could not be brought "
                "back to where they stood (they are not deterministic given a seed and actions, "
                "or their episodes are too long); training goes on from where they are.",
                stacklevel=2,
            )
        return restarted


class FreeGatherer(Gatherer):
    """Every environment at its own pace, until they have made the rollout's steps between them.

    Whoever is ready is acted for, and nobody waits for another: on a machine whose cores are all
    busy, some workers get less of them than others. Whoever is amid a step when the others are
    done gets a little longer; then what it decided is dropped.

    Unless decisions may be older: where steps take long, everyone goes on until the steps are made.
    What is in flight then, or does not fit any more, belongs to the next rollout, and is dropped
    only once it would be more than `oldest` versions behind.
    """

    def __init__(self, *given: Any, oldest: int = 0) -> None:
        super().__init__(*given)
        self._oldest = oldest
        self._since = np.zeros(self.pool.n_envs, np.int64)  # the version that each decided under
        self._last: StagedStorage | None = None  # which holds the decisions in flight
        self._held: StepBatch | None = None  # what did not fit into it

    def _set_off(self, storage: StagedStorage) -> None:
        self._limit = storage.n_envs * (storage.capacity if self._oldest else storage.n_steps)
        self._taken = np.zeros(storage.n_envs, np.int64)
        flying = self._ids[self._step_of >= 0]
        self._started = flying.size
        if flying.size and self._last is not None:
            storage.carry(self._last, self._step_of[flying], flying)
            self._step_of[flying] = 0
        self._last = storage
        on = self._go_on(storage, self._ids[self._step_of == _NOT_ASKED])
        if on.size:
            self._send_on(on)

    def _gather(self, storage: StagedStorage, metrics: MetricSums, wanted: Wanted) -> int:
        missing = total = storage.n_steps * storage.n_envs
        elsewhere = int(np.count_nonzero(self._step_of == _ELSEWHERE))
        ends, began = math.inf, time.perf_counter()
        while missing:
            asked = self._started - (total - missing)
            if not asked or time.perf_counter() >= ends:
                break
            batch, self._held = self._held or self._receive(asked, ends), None
            if not wanted():
                raise GatheringInterruptedError
            if not batch.env_ids.size:
                continue
            kept, steps = batch, self._step_of[batch.env_ids]
            if len(steps) > missing and self._oldest:
                fitting, rest = np.split(np.arange(len(steps)), [missing])
                self._held = batch.rows(rest)
                kept = batch = batch.rows(fitting)
                steps = steps[fitting]
            ids = batch.env_ids
            self._step_of[ids] = _NOT_ASKED
            if elsewhere:
                ours = steps >= 0
                kept, steps = batch.rows(ours), steps[ours]
                elsewhere -= len(ids) - len(steps)
            self._taken[kept.env_ids] += 1
            missing -= len(steps)
            on = self._go_on(storage, ids)
            storage.write_outcome(steps, kept)  # while the device decides
            self._count(batch, metrics)
            if on.size:
                self._send_on(on)
            elif ends == math.inf and 2 * missing < total:
                behind = np.count_nonzero(self._taken < storage.capacity)
                if self._started == self._limit or 2 * behind <= storage.n_envs:
                    now = time.perf_counter()  # else they make the rest
                    ends = now + max(_SHORTEST_TAIL_S, _TAIL * (now - began))
        flying = self._ids[self._step_of >= 0]
        storage.cut(self._step_of[flying], flying)
        late = flying[storage.version + 1 - self._since[flying] > self._oldest]
        self._step_of[late] = _ELSEWHERE
        return len(late)

    def _receive(self, asked: int, ends: float) -> StepBatch:
        with self.clock.phase("env"):
            patience = min(self.pool.patience, max(0.0, ends - time.perf_counter()))
            return self.pool.recv(min(asked, self.pool.handful), patience=patience)

    def _go_on(self, storage: StagedStorage, ids: np.ndarray) -> np.ndarray:
        """Act for as many of these as there are steps to make; which."""
        taken, left = self._taken[ids], self._limit - self._started
        if left < len(ids) or taken.max(initial=0) >= storage.capacity:
            ids = ids[taken < storage.capacity][:left]
            taken = self._taken[ids]
        if ids.size:
            self._started += ids.size
            self._step_of[ids], self._since[ids] = taken, storage.version
            with self.clock.phase("inference"):
                self._acting.start(storage, taken, ids)
        return ids

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        self._step_of[:], self._held = _NOT_ASKED, None
        return super().restore(state)
