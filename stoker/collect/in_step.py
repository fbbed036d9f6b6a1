"""Collection in step: act, step everyone, store; then the learner's turn."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from stoker.collect.episodes import EpisodeTracker, JournalKeeper
from stoker.storage.rollout import RolloutStorage
from stoker.types import Clock, DeviceObs, EpisodeJournal, HostObs, Policy, Pool, Rollout


class InStepCollector:
    """Fills a rollout with N environments in lock-step. Same seed, same machine, same bits."""

    def __init__(
        self, pool: Pool, policy: Policy, storage: RolloutStorage, clock: Clock, seed: int
    ) -> None:
        self.pool, self.policy, self.storage, self.clock = pool, policy, storage, clock
        self.seed = seed
        self.episodes = EpisodeTracker(pool.n_envs)
        action = pool.spec.action
        self._journal = JournalKeeper(pool.n_envs, action.width, action.continuous)
        self._batch = pool.reset(seed)
        self._sums = dict.fromkeys(pool.spec.metric_names, 0.0)
        self._counts = dict.fromkeys(pool.spec.metric_names, 0)

    def collect(self, version: int) -> Rollout:
        """T steps of everyone under the policy's present weights, called `version`."""
        self.storage.begin(version)
        noise = self.policy.draw_noise(self.storage.n_steps * self.pool.n_envs)
        noise = noise.unflatten(0, (self.storage.n_steps, self.pool.n_envs))
        for t in range(self.storage.n_steps):
            with self.clock.phase("inference"):
                obs, mask = self._on_device(self._batch.obs), self._mask_on_device()
                output = self.policy.act(obs, mask, noise[t])
                self.storage.write_decision(t, obs, mask, output)
                actions = output.action.cpu().numpy()  # sync: environments act on the host
            with self.clock.phase("env"):
                batch = self._batch = self.pool.step(actions)
            with self.clock.phase("store"):
                self.storage.write_outcome(t, batch)
                self.episodes.take(batch)
                self._journal.take(actions, batch)
                self._count_metrics()
                if batch.truncated.any():
                    final_value = self.policy.value(self._on_device(batch.final_obs))
                    self.storage.write_final_value(t, batch.truncated, final_value)
        with self.clock.phase("inference"):
            return self.storage.finish(self.policy.value, self._on_device(self._batch.obs))

    def _on_device(self, obs: HostObs) -> DeviceObs:
        return {leaf: self._send(value) for leaf, value in obs.items()}

    def _mask_on_device(self) -> Tensor | None:
        mask = self._batch.action_mask
        return None if mask is None else self._send(mask)

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.storage.device)  # sync: from pageable memory

    def _count_metrics(self) -> None:
        for name, values in self._batch.metrics.items():
            reported = values[np.isfinite(values)]
            self._sums[name] += float(reported.sum())
            self._counts[name] += len(reported)

    def metrics(self) -> dict[str, float]:
        """Of episodes, and the means of what environments reported since the last call."""
        own = {
            f"env/{name}": self._sums[name] / count for name, count in self._counts.items() if count
        }
        self._sums = dict.fromkeys(self.pool.spec.metric_names, 0.0)
        self._counts = dict.fromkeys(self.pool.spec.metric_names, 0)
        return {**self.episodes.metrics(), **own}

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to go on from here, by name."""
        journal = self._journal.journal()._asdict()
        last = {f"last_obs.{leaf}": value for leaf, value in self._batch.obs.items()}
        return {**self.episodes.state(), **journal, **last}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Bring every environment back to where it stood; those that began anew, by number."""
        journal = EpisodeJournal(state["episode"], state["length"], state["actions"])
        self.episodes.restore(state)
        self._batch = self.pool.reset(self.seed, journal)
        arrived = self._batch.valid.copy()
        restarted = np.flatnonzero(~arrived)
        self._journal.restore(journal, restarted)
        self.episodes.forget(restarted)
        for leaf, value in self._batch.obs.items():
            same = value == state[f"last_obs.{leaf}"]
            arrived &= same.reshape(len(same), -1).all(axis=1)
        if not arrived.all():
            warnings.warn(
                f"{int((~arrived).sum())} of {len(arrived)} environments could not be brought "
                "back to where they stood (they are not deterministic given a seed and actions, "
                "or their episodes are too long); training goes on from where they are.",
                stacklevel=2,
            )
        return restarted
