"""An environment that counts its steps, and a policy whose value is what it sees, squared."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.collect.gather import Gatherer
from stoker.collect.in_step import InStepCollector
from stoker.monitor.phases import PhaseClock
from stoker.pools.inline import InlinePool
from stoker.pools.spaces import describe_env
from stoker.storage.staged import StagedStorage
from stoker.types import PLAIN, Clock, DeviceObs, Policy, PolicyOutput, Pool, Rollout

EPISODE = 100.0
"""What lies between the first observations of two episodes."""


class StepCounter(gymnasium.Env[np.ndarray, int]):
    """Observes EPISODE * (episodes so far) + (steps so far); the reward is the step's number.

    An episode ends after `length` steps, as `ending` says.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(5)
    metric_names = ("double",)

    def __init__(self, length: int, ending: str) -> None:
        self.length, self.ending = length, ending
        self.episode, self.step_number = -1, 0

    def _observation(self) -> np.ndarray:
        return np.array([EPISODE * self.episode + self.step_number], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_number = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        over = self.step_number == self.length
        terminated = over and self.ending in ("terminated", "both")
        truncated = over and self.ending in ("truncated", "both")
        info = {"metrics": {"double": 2.0 * self.step_number}} if self.step_number % 2 else {}
        return self._observation(), float(self.step_number), terminated, truncated, info


def counting_pool(*kinds: tuple[int, str]) -> InlinePool:
    """One environment a kind, a length and an ending."""
    waiting = iter(kinds)
    spec = describe_env("counter", StepCounter(1, "truncated"), {})
    return InlinePool(lambda: StepCounter(*next(waiting)), spec, len(kinds))


def in_step(pool: Pool, policy: Policy, steps: int, clock: Clock | None = None) -> InStepCollector:
    """A collector in step, of rollouts of so many steps, on the CPU."""
    device = torch.device("cpu")
    gatherer = Gatherer(pool, policy, clock or PhaseClock(), 0, device)
    return InStepCollector(gatherer, StagedStorage(pool.spec, steps, pool.n_envs, device))


def collected(collector: InStepCollector) -> Rollout:
    """A rollout as the policy that acted judges it."""
    return collector.collect().judged_by(collector.gatherer.policy, collector.version)


class SquaringPolicy:
    """V(obs) is obs squared; the action its last digit modulo 5, the log-probability -obs."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def draw_noise(self, rows: int) -> Tensor:
        return torch.zeros(rows)

    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        seen = obs[PLAIN]
        return PolicyOutput((seen % 5).long(), -seen.squeeze(-1))

    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor:
        return (obs[PLAIN] % 5).long()

    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.value(obs), -obs[PLAIN].squeeze(-1)

    def value(self, obs: DeviceObs) -> Tensor:
        return obs[PLAIN].squeeze(-1) ** 2
