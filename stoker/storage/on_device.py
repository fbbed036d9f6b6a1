"""A rollout whose environments step on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stoker.storage.rollout import RolloutStorage
from stoker.types import PLAIN, DeviceObs, Finals, Policy, PolicyOutput, TensorBatch


class DeviceStorage(RolloutStorage):
    """Environments write their outcomes here themselves. Every row has one.

    What was seen last is kept in the row after the last, so whoever acts at step t finds what is
    seen in row t and leaves in row t + 1 what comes of it.
    """

    rows_at_once = 131_072

    def __init__(self, spec: Any, n_steps: int, n_envs: int, device: torch.device) -> None:
        super().__init__(spec, n_steps, n_envs, device)
        kept = self._rollout
        kept.valid.fill_(True)
        self._last_obs = {leaf: rows[n_steps] for leaf, rows in kept.obs.items()}
        self.final_obs = {leaf: torch.zeros_like(rows[:n_steps]) for leaf, rows in kept.obs.items()}
        self.metrics = {name: torch.zeros_like(kept.reward[:-1]) for name in spec.metric_names}
        self.rollout = kept.first(n_steps, None)
        """As the environments have written it; what `judged_by` adds is not in it yet."""

    def begin(self, version: int) -> None:
        """The policy that acts is the one that learns: nothing is late, and no row is left out."""

    def follow(self) -> None:
        """Begin where the rollout before has ended."""
        for leaf, value in self._last_obs.items():
            self._rollout.obs[leaf][0].copy_(value)

    def seen(self, t: int) -> DeviceObs:
        """What everyone sees before step `t`."""
        return {leaf: rows[t] for leaf, rows in self._rollout.obs.items()}

    def decide(self, t: int, output: PolicyOutput) -> None:
        """What the policy does about it."""
        self._rollout.action[t].copy_(output.action)
        self._rollout.behaviour_log_prob[t].copy_(output.log_prob)

    def plain(self) -> Tensor:
        """What was seen, where it is one vector: [T + 1, N, width], to the row after the last."""
        return _as_vectors(self._rollout.obs[PLAIN])

    def plain_finals(self) -> Tensor:
        """What each step led to, likewise: [T, N, width]."""
        return _as_vectors(self.final_obs[PLAIN])

    def row(self, t: int) -> TensorBatch:
        """Where what comes of step `t` is to be written."""
        kept = self._rollout
        return TensorBatch(
            self.seen(t + 1),
            kept.reward[t],
            kept.terminated[t],
            kept.truncated[t],
            {leaf: rows[t] for leaf, rows in self.final_obs.items()},
            {name: rows[t] for name, rows in self.metrics.items()},
        )

    def _seen_last(self) -> Finals:
        """On a CPU, where episodes were truncated; elsewhere everywhere, as nobody has looked."""
        seen = {leaf: rows.flatten(0, 1) for leaf, rows in self.final_obs.items()}
        if self._may_look:
            place = self.rollout.truncated.flatten().nonzero().squeeze(1)  # sync: on the CPU
            return Finals(place, {leaf: rows[place] for leaf, rows in seen.items()})
        return Finals(torch.arange(self.n_steps * self.n_envs, device=self.device), seen)

    def _judge_finals(self, policy: Policy) -> None:
        if self._may_look:
            super()._judge_finals(policy)
            return
        kept, steps = self.rollout, max(1, self.rows_at_once // self.n_envs)
        for part in (slice(t, t + steps) for t in range(0, self.n_steps, steps)):
            some = {leaf: rows[part].flatten(0, 1) for leaf, rows in self.final_obs.items()}
            value = policy.value(some).view_as(kept.reward[part])
            kept.final_value[part] = torch.where(kept.truncated[part], value, 0.0)

    @property
    def _may_look(self) -> bool:
        """Whether to ask which rows are wanted costs nothing."""
        return self.device.type == "cpu"


def _as_vectors(rows: Tensor) -> Tensor:
    """[T, N, width], also of what has no dimensions."""
    return rows.view(*rows.shape[:2], -1)
