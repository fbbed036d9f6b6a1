"""A pool in memory whose environments are late when a script says so, and policies to go with it.

How late an environment is, is counted in the times that it was asked for, and so is the time that
passes: no clock is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker.errors import EnvError
from stoker.pools.base import BasePool
from stoker.pools.journal import replay_of
from stoker.types import (
    PLAIN,
    ActionSpec,
    DeviceObs,
    EnvSpec,
    EpisodeJournal,
    HostObs,
    LeafSpec,
    PolicyOutput,
    StepBatch,
)

CHOICES = 5
SPEC = EnvSpec(
    "scripted",
    {PLAIN: LeafSpec("vector", (2,), "float32")},
    ActionSpec("discrete", (), "int64", (CHOICES,), (0,)),
    has_mask=True,
    metric_names=("number",),
)
NEVER = 10**9
"""Asks: longer than any rollout takes, so it is late until the test releases it."""


class AsksForTime:
    """Stands in for the module `time`: a tick passes whenever a scripted pool is asked."""

    def __init__(self) -> None:
        self.tick = 2.0**-10
        """Seconds; a power of two, so that sums are exact."""
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


TIME = AsksForTime()
TAIL = 21
"""So many asks begin within 20 ms."""


class Kind(NamedTuple):
    """How an environment's episodes end."""

    length: int = 7
    terminates: bool = True


class ScriptedPool(BasePool):
    """Environments whose observation tells where they stand and all that was done there.

    One action is forbidden at each place, and doing it all the same is an error.

    `delays[env, k]` is how often environment `env`, counted from 0, is asked for in vain after its
    k-th action, if it is not released before; whoever asks without patience gets it all the same.
    As worker processes do, the pool writes an environment's next observation over its row while
    that is under way.
    """

    def __init__(
        self,
        n_envs: int,
        groups: int = 1,
        delays: Mapping[tuple[int, int], int] | None = None,
        kinds: Mapping[int, Kind] | None = None,
        fails_at: int | None = None,
    ) -> None:
        super().__init__(SPEC, n_envs)
        blocks = np.array_split(np.arange(n_envs), groups)
        self.groups = tuple(slice(int(b[0]), int(b[-1]) + 1) for b in blocks)
        self.delays, self.kinds = dict(delays or {}), dict(kinds or {})
        self.fails_at = fails_at
        self.sent = np.zeros(n_envs, np.int64)
        self.sends: list[tuple[int, ...]] = []
        self.patiences: list[float | None] = []
        """Of every time that it was asked."""
        self.taken: list[list[int]] = [[] for _ in range(n_envs)]
        self._history: list[list[int]] = [[] for _ in range(n_envs)]
        self._episode = np.zeros(n_envs, np.int64)
        self._waiting: dict[int, int] = {}  # environments under way, and how late they are
        self._obs = np.zeros((n_envs, 2), np.float32)
        self._final = np.zeros((n_envs, 2), np.float32)
        self._mask = np.ones((n_envs, CHOICES), bool)
        self._reward = np.zeros(n_envs, np.float32)
        self._number = np.zeros(n_envs, np.float32)
        self._flags = {name: np.zeros(n_envs, bool) for name in ("terminated", "truncated")}

    @property
    def seen(self) -> tuple[HostObs, np.ndarray | None]:
        return {PLAIN: self._obs}, self._mask

    def release(self, *envs: int) -> None:
        """These are late no longer, and must have been."""
        for env in envs:
            assert self._waiting[env] > 0
            self._waiting[env] = 0

    def where(self, env: int) -> np.ndarray:
        """What an environment shows now: env, episode and step; and a trace of its actions."""
        history = self._history[env]
        trace = sum((k + 1) * action for k, action in enumerate(history))
        return np.array([1000 * env + 100 * self._episode[env] + len(history), trace], np.float32)

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        self._waiting.clear()
        for env in range(self.n_envs):
            episode, actions = replay_of(journal, env, self.codec)
            self._episode[env] = episode
            self._history[env] = [] if actions is None else [int(a) for a in actions]
            self._show(env)
        return self._batch(np.arange(self.n_envs))

    def _show(self, env: int) -> None:
        self._obs[env] = self.where(env)
        self._mask[env] = True
        self._mask[env, int(self._obs[env].sum()) % CHOICES] = False

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        assert actions.shape == (len(env_ids), 1)
        self.sends.append(tuple(env_ids.tolist()))
        for env, action in zip(env_ids.tolist(), actions[:, 0].tolist(), strict=True):
            assert env not in self._waiting, f"environment {env} is still under way"
            assert self._mask[env, action], f"environment {env} forbids action {action}"
            self._waiting[env] = self.delays.get((env, int(self.sent[env])), 0)
            self._number[env] = self.sent[env]
            self.sent[env] += 1
            self.taken[env].append(action)
            self._step(env, action)

    def _step(self, env: int, action: int) -> None:
        kind = self.kinds.get(env, Kind())
        self._history[env].append(action)
        over = len(self._history[env]) == kind.length
        self._reward[env] = len(self._history[env]) + 0.25 * action
        self._flags["terminated"][env] = over and kind.terminates
        self._flags["truncated"][env] = over and not kind.terminates
        self._final[env] = self.where(env)
        if over:
            self._episode[env] += 1
            self._history[env].clear()
        self._show(env)

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        if self.fails_at is not None and self.sent.sum() >= self.fails_at:
            raise EnvError("out of ideas")
        self.patiences.append(patience)
        TIME.now += TIME.tick
        place = among or slice(0, self.n_envs)
        asked = [env for env in sorted(self._waiting) if place.start <= env < place.stop]
        assert at_least <= len(asked), "it would wait for ever"
        ready = [env for env in asked if patience is None or self._waiting[env] == 0]
        for env in asked:
            if env in ready:
                del self._waiting[env]
            else:
                self._waiting[env] -= 1
        return self._batch(np.array(ready, np.int64))

    def _batch(self, ids: np.ndarray) -> StepBatch:
        """Views where these environments are a range, as other pools give them."""
        is_range = ids.size and np.array_equal(ids, np.arange(ids[0], ids[-1] + 1))
        rows = slice(ids[0], ids[-1] + 1) if is_range else ids
        return StepBatch(
            env_ids=ids,
            obs={PLAIN: self._obs[rows]},
            reward=self._reward[rows],
            terminated=self._flags["terminated"][rows],
            truncated=self._flags["truncated"][rows],
            final_obs={PLAIN: self._final[rows]},
            action_mask=self._mask[rows],
            valid=np.ones(len(ids), bool),
            metrics={"number": self._number[rows]},
        )

    def close(self) -> None:
        pass


class RowByRowPolicy:
    """Treats every row by itself, in operations that do not mix rows: batches make no difference.

    `bias` stands in for weights that change.
    """

    def __init__(self, seed: int = 0, bias: float = 0.0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.bias = torch.tensor(bias)

    def draw_noise(self, rows: int) -> Tensor:
        return torch.rand(rows, generator=self.generator)

    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        assert action_mask is not None
        drawn = obs[PLAIN].sum(1) + self.bias + CHOICES * noise
        action = (drawn.long() % CHOICES)[:, None]
        action = torch.where(action_mask.gather(1, action), action, (action + 1) % CHOICES)
        return PolicyOutput(action, -noise - self.bias)

    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor:
        raise AssertionError

    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.value(obs), -action[:, 0] - self.bias

    def value(self, obs: DeviceObs) -> Tensor:
        place, trace = obs[PLAIN].unbind(1)
        return (place % 100) ** 2 + 0.5 * trace + self.bias
