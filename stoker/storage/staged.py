"""A rollout whose environments step on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.storage.rollout import RolloutStorage
from stoker.types import DeviceObs, Finals, HostObs, Policy, Rollout, StepBatch

_STAGED = ("reward", "terminated", "truncated", "valid")


class StagedStorage(RolloutStorage):
    """Decisions are written to the device as they are taken, outcomes staged on the host.

    Those are copied once a rollout: what a host pool reports (reward and flags) is a few bytes a
    row, and copying it every step would cost four transfers a step.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._finals: list[tuple[np.ndarray, HostObs]] = []  # flat places, and what was seen there
        pinned = self.device.type == "cuda"
        fields = {name: getattr(self._rollout, name)[: self.capacity] for name in _STAGED}
        self._staged = {
            name: torch.zeros_like(field, device="cpu", pin_memory=pinned)
            for name, field in fields.items()
        }
        self._host = {name: tensor.numpy() for name, tensor in self._staged.items()}

    @property
    def steps_taken(self) -> int:
        return int(np.count_nonzero(self._host["valid"]))

    def begin(self, version: int) -> None:
        super().begin(version)
        self._finals.clear()
        for staged in self._host.values():
            staged.fill(0)

    def write_outcome(self, t: np.ndarray | int, batch: StepBatch) -> None:
        """What came of it: at step `t`, of a range of environments; or of any, at a step each."""
        ids = batch.env_ids
        for name, staged in self._host.items():
            if isinstance(t, int):  # of a range of environments, so without an index
                staged[t, ids[0] : ids[-1] + 1] = getattr(batch, name)
            else:
                staged[t, ids] = getattr(batch, name)
        bootstrapped = batch.truncated & batch.valid
        if bootstrapped.any():
            flat = (np.asarray(t) * self.n_envs + ids)[bootstrapped]
            seen = {leaf: value[bootstrapped] for leaf, value in batch.final_obs.items()}
            self._finals.append((flat, seen))

    def cut(self, t: np.ndarray, env_ids: np.ndarray) -> None:
        """Say that what came of the decisions at these steps will not be known."""
        self._host["truncated"][t, env_ids] = True

    def carry(self, other: StagedStorage, t: np.ndarray, env_ids: np.ndarray) -> None:
        """Take over decisions that `other` holds at steps `t`, as these environments' first."""
        self._has_older = True
        steps, ids = (torch.from_numpy(x).to(self.device) for x in (t, env_ids))  # sync: a few
        for mine, given in zip(self._decisions(), other._decisions(), strict=True):
            mine[0, ids] = given[steps, ids]

    def _decisions(self) -> list[Tensor]:
        kept = self._rollout
        rest = (kept.action, kept.action_mask, kept.behaviour_log_prob, kept.policy_version)
        return [*kept.obs.values(), *(field for field in rest if field is not None)]

    def end(self, last_obs: DeviceObs) -> None:
        for name, staged in self._staged.items():
            getattr(self._rollout, name)[: self.capacity].copy_(staged, non_blocking=True)
        super().end(last_obs)

    def _as_far_as_it_goes(self, steps: int | None = None, chosen: Tensor | None = None) -> Rollout:
        """Without rows that nobody came to; and which n_steps * n_envs of the others to take."""
        if self.capacity == self.n_steps:
            return super()._as_far_as_it_goes(steps, chosen)
        valid = self._host["valid"]
        came = (valid | self._host["truncated"]).any(1)
        longest = max(self.n_steps, int(came.sum()))
        budget = self.n_steps * self.n_envs
        order = np.sort(np.argsort(~valid[:longest].ravel(), kind="stable")[:budget])
        picked = torch.from_numpy(order).to(self.device)  # sync: once a rollout
        return super()._as_far_as_it_goes(longest, picked)

    def _seen_last(self) -> Finals:
        """On the host, as it came."""
        places = [np.zeros(0, np.int64), *(places for places, _ in self._finals)]
        none = {n: rows[:0].cpu().numpy() for n, rows in self._last_obs.items()}  # sync: of no rows
        seen = {n: np.concatenate([none[n], *(obs[n] for _, obs in self._finals)]) for n in none}
        rows = {leaf: torch.from_numpy(value) for leaf, value in seen.items()}
        return Finals(torch.from_numpy(np.concatenate(places)), rows)

    def _judge_finals(self, policy: Policy) -> None:
        if self._finals:
            super()._judge_finals(policy)
        else:
            self._rollout.final_value.zero_()
