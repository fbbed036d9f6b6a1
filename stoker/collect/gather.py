"""Filling a rollout: act for one group of environments while another steps."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch

from stoker.collect.acting import make_acting
from stoker.collect.episodes import EpisodeTracker, JournalKeeper, MetricSums
from stoker.storage.rollout import RolloutStorage
from stoker.types import Clock, DeviceObs, EpisodeJournal, HostObs, Policy, Pool, StepBatch

_LEAST_PATIENCE_S = 0.02
_USUAL_TIMES = 4.0  # a step that takes this many times the usual is not waited for


class GatheringInterruptedError(Exception):
    """Whoever wanted the rollout does not want it any more."""


class Gathered(NamedTuple):
    """What came of filling a rollout, besides the rollout."""

    steps: int  # transitions
    late: int  # decisions whose outcome did not come in time, and were dropped
    metrics: MetricSums


class _Seen(NamedTuple):
    """What a group sees now."""

    obs: HostObs
    mask: np.ndarray | None


class Gatherer:
    """Steps a pool under a policy, one rollout at a time.

    Groups alternate, in a fixed order: the result does not depend on who is quick. Unless it
    `waits`, an environment that takes far longer than its group usually does is left behind: it
    has gaps in the rollout until it comes back, and nobody waits for it.
    """

    def __init__(
        self,
        pool: Pool,
        policy: Policy,
        clock: Clock,
        seed: int,
        device: torch.device,
        waits: bool = True,
    ) -> None:
        self.pool, self.policy, self.clock, self.seed = pool, policy, clock, seed
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.episodes = EpisodeTracker(pool.n_envs)
        action = pool.spec.action
        self._journal = JournalKeeper(pool.n_envs, action.width, action.continuous)
        self._acting = make_acting(policy, pool.groups, device)
        self._device, self._waits = device, waits
        self._ids = [np.arange(group.start, group.stop) for group in pool.groups]
        n = pool.n_envs
        self._actions = np.zeros((n, action.width), np.float32 if action.continuous else np.int64)
        self._step_of = np.zeros(n, np.int64)  # of the decision last sent; -1: of another rollout
        self._late = np.zeros(n, bool)
        self._usual_s, self._sent_at = [1.0] * len(pool.groups), [0.0] * len(pool.groups)
        self._look_at(pool.reset(seed))

    def _look_at(self, everyone: StepBatch) -> None:
        self._seen = [
            _Seen(
                {leaf: value[group] for leaf, value in everyone.obs.items()},
                None if everyone.action_mask is None else everyone.action_mask[group],
            )
            for group in self.pool.groups
        ]

    def fill(
        self, storage: RolloutStorage, version: int, wanted: Callable[[], bool] = lambda: True
    ) -> Gathered:
        """T steps of everyone under the policy's present weights, called `version`."""
        self._wanted = wanted
        metrics, groups = MetricSums(), range(len(self.pool.groups))
        with self.on_its_stream():
            storage.begin(version)
            self._acting.begin(storage)
            for t in range(storage.n_steps):
                if not self._wanted():
                    raise GatheringInterruptedError
                for group in groups:
                    if t:
                        self._receive(storage, t - 1, group, metrics)
                    self._decide(storage, t, group)
            for group in groups:
                self._receive(storage, storage.n_steps - 1, group, metrics)
            dropped = self._give_up_on_the_late(storage)
            storage.end(self._last_obs())
            if self.stream is not None:
                self.stream.synchronize()  # sync: the rollout is handed to another stream
        return Gathered(storage.steps_taken, dropped, metrics)

    def on_its_stream(self) -> AbstractContextManager[object]:
        """Where its work on a GPU is queued, apart from the learner's."""
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def _decide(self, storage: RolloutStorage, t: int, group: int) -> None:
        """Act for those of the group that are here, and send them on."""
        ids, place = self._ids[group], self.pool.groups[group]
        with self.clock.phase("inference"):
            actions = self._acting.act(storage, t, group, *self._seen[group])
        if self._late[place].any():
            here = ~self._late[place]
            ids, actions = ids[here], actions[here]
        self._actions[ids], self._step_of[ids] = actions, t
        with self.clock.phase("env"):
            self.pool.send(actions, ids)
        self._sent_at[group] = time.perf_counter()

    def _receive(self, storage: RolloutStorage, t: int, group: int, metrics: MetricSums) -> None:
        """Store what came of the group's decisions at step `t`."""
        with self.clock.phase("env"):
            batch = self._wait_for(group)
        with self.clock.phase("store"):
            ids, size = batch.env_ids, len(self._ids[group])
            if len(ids) == size and not self._late[ids].any():
                self._seen[group] = _Seen(batch.obs, batch.action_mask)
                storage.write_outcome(t, batch)
            else:
                self._see_some(group, batch)
                self._late[self._ids[group]] = True
                self._late[ids] = False
                known = self._step_of[ids] >= 0
                storage.write_outcome(self._step_of[ids[known]], batch.rows(known))
            self.episodes.take(batch)
            self._journal.take(self._actions[ids], batch)
            metrics.take(batch)

    def _wait_for(self, group: int) -> StepBatch:
        """The group's outcomes: of all of it, or of those who are not late."""
        place = self.pool.groups[group]
        if self._waits:
            return self.pool.recv(len(self._ids[group]), place)
        expected = int(np.count_nonzero(~self._late[place]))
        patience = max(_LEAST_PATIENCE_S, _USUAL_TIMES * self._usual_s[group])
        batch = self.pool.recv(expected, place, patience)
        while 2 * len(batch.env_ids) < len(self._ids[group]):  # if most are late, nobody is
            if not self._wanted():
                raise GatheringInterruptedError
            more = self.pool.recv(expected - len(batch.env_ids), place, patience)
            batch = batch.joined(more)
        if len(batch.env_ids) >= expected:
            took = time.perf_counter() - self._sent_at[group]
            self._usual_s[group] += 0.1 * (took - self._usual_s[group])
        return batch

    def _see_some(self, group: int, batch: StepBatch) -> None:
        """The group sees what it saw, and what `batch` shows of some."""
        rows = batch.env_ids - self.pool.groups[group].start
        obs = {leaf: value.copy() for leaf, value in self._seen[group].obs.items()}
        for leaf, value in batch.obs.items():
            obs[leaf][rows] = value
        mask = self._seen[group].mask
        if mask is not None:
            mask = mask.copy()
            mask[rows] = batch.action_mask
        self._seen[group] = _Seen(obs, mask)

    def _give_up_on_the_late(self, storage: RolloutStorage) -> int:
        """What they were sent belongs to this rollout, and their answers will come after it."""
        late = np.flatnonzero(self._late & (self._step_of >= 0))
        if late.size:
            storage.cut(self._step_of[late], late)
            self._step_of[late] = -1
        return len(late)

    def _last_obs(self) -> DeviceObs:
        leaves = self._seen[0].obs
        seen = {leaf: np.concatenate([group.obs[leaf] for group in self._seen]) for leaf in leaves}
        return {
            leaf: torch.from_numpy(value).to(self._device)  # sync: from pageable memory
            for leaf, value in seen.items()
        }

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to go on from here, by name; copies."""
        journal = self._journal.journal()._asdict()
        leaves = self._seen[0].obs
        last = {
            f"last_obs.{leaf}": np.concatenate([group.obs[leaf] for group in self._seen])
            for leaf in leaves
        }
        episodes = {name: value.copy() for name, value in self.episodes.state().items()}
        noise = {"noise_rng": self.policy.generator.get_state().numpy()}
        return {**episodes, **journal, **last, **noise, "late": self._late.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Bring every environment back to where it stood; those that began anew, by number."""
        journal = EpisodeJournal(state["episode"], state["length"], state["actions"])
        self.policy.generator.set_state(torch.from_numpy(state["noise_rng"]))
        self.episodes.restore(state)
        batch = self.pool.reset(self.seed, journal)
        self._late[:] = False
        self._look_at(batch)
        arrived = batch.valid.copy()
        restarted = np.flatnonzero(~arrived)
        self._journal.restore(journal, restarted)
        self.episodes.forget(restarted)
        for leaf, value in batch.obs.items():
            same = value == state[f"last_obs.{leaf}"]
            # Whoever was late then had its row written over while it was under way.
            arrived &= same.reshape(len(same), -1).all(axis=1) | state["late"]
        if not arrived.all():
            warnings.warn(
                f"{int((~arrived).sum())} of {len(arrived)} environments could not be brought "
                "back to where they stood (they are not deterministic given a seed and actions, "
                "or their episodes are too long); training goes on from where they are.",
                stacklevel=2,
            )
        return restarted
