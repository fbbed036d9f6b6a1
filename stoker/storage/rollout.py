"""T steps of N environments on the device, written in place, never reallocated."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.types import DeviceObs, EnvSpec, HostObs, Policy, PolicyOutput, Rollout, StepBatch

_ROWS_AT_ONCE = 8192  # of one forward pass: enough to fill a GPU, little enough for its memory
_FIXED_BYTES = 5 * 4 + 8 + 3  # two log-probabilities, two values, reward; version; three flags


class RolloutStorage:
    """A collector fills it (`begin`, `write_...`, `end`), then a learner has it judged.

    Decisions are written to the device as they are taken. Outcomes are staged on the host and
    copied once a rollout: what a host pool reports (reward and flags) is a few bytes a row, and
    copying it every step would cost four transfers a step. A row without an outcome is a gap.
    """

    def __init__(
        self,
        spec: EnvSpec,
        n_steps: int,
        n_envs: int,
        device: torch.device,
        capacity: int | None = None,
    ) -> None:
        self.n_steps, self.n_envs, self.device = n_steps, n_envs, device
        self.capacity = rows = capacity or n_steps
        """Steps that one environment may have, where others have fewer."""
        self.version = 0
        """Of the weights that acted."""

        def field(*tail: int, dtype: torch.dtype = torch.float32) -> Tensor:
            # One row too many: whoever acts for everyone at once, as a CUDA graph must, sends there
            # what is not wanted.
            return torch.zeros(rows + 1, n_envs, *tail, dtype=dtype, device=device)

        leaves = {
            name: (leaf.shape, getattr(torch, leaf.dtype))
            for name, leaf in spec.observation.items()
        }
        self._rollout = Rollout(
            obs={name: field(*tail, dtype=dtype) for name, (tail, dtype) in leaves.items()},
            action=field(spec.action.width, dtype=getattr(torch, spec.action.stored_dtype)),
            action_mask=field(spec.mask_width, dtype=torch.bool) if spec.has_mask else None,
            behaviour_log_prob=field(),
            policy_version=field(dtype=torch.int64),
            log_prob=field(),
            value=field(),
            reward=field(),
            terminated=field(dtype=torch.bool),
            truncated=field(dtype=torch.bool),
            final_value=field(),
            valid=field(dtype=torch.bool),
            last_value=torch.zeros(n_envs, device=device),
            chosen=None,
        )
        self._last_obs: DeviceObs = {
            name: torch.zeros(n_envs, *tail, dtype=dtype, device=device)
            for name, (tail, dtype) in leaves.items()
        }
        self._finals: list[tuple[np.ndarray, HostObs]] = []  # flat places, and what was seen there
        pinned = device.type == "cuda"
        self._staged = {
            name: torch.zeros(rows, n_envs, dtype=dtype, pin_memory=pinned)
            for name, dtype in (
                ("reward", torch.float32),
                ("terminated", torch.bool),
                ("truncated", torch.bool),
                ("valid", torch.bool),
            )
        }
        self._host = {name: tensor.numpy() for name, tensor in self._staged.items()}

    @staticmethod
    def size(spec: EnvSpec, n_steps: int, n_envs: int) -> int:
        """Bytes that a rollout with room for `n_steps` of each environment takes on the device."""
        leaves = spec.observation.values()
        observed = sum(prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
        acted = spec.action.width * np.dtype(spec.action.stored_dtype).itemsize + spec.mask_width
        return (n_steps + 1) * n_envs * (observed + acted + _FIXED_BYTES) + n_envs * (observed + 4)

    @property
    def steps_taken(self) -> int:
        """How many rows are transitions."""
        return int(np.count_nonzero(self._host["valid"]))

    def begin(self, version: int) -> None:
        """Make ready for a rollout under the weights called `version`."""
        self.version, self._has_older = version, False
        self._rollout.policy_version.fill_(version)
        self._finals.clear()
        for staged in self._host.values():
            staged.fill(0)

    def write_decision(
        self, t: Any, place: Any, obs: DeviceObs, mask: Tensor | None, output: PolicyOutput
    ) -> None:
        """What the policy saw and did: at step `t`, of a range of environments; or a step each."""
        kept = self._rollout
        for leaf, value in obs.items():
            kept.obs[leaf][t, place] = value
        if mask is not None and kept.action_mask is not None:
            kept.action_mask[t, place] = mask
        kept.action[t, place] = output.action
        kept.behaviour_log_prob[t, place] = output.log_prob

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

    def carry(self, other: RolloutStorage, t: np.ndarray, env_ids: np.ndarray) -> None:
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
        """The rollout is full; `last_obs` is what the last steps led to."""
        for name, staged in self._staged.items():
            getattr(self._rollout, name)[: self.capacity].copy_(staged, non_blocking=True)
        for leaf, value in last_obs.items():
            self._last_obs[leaf].copy_(value)  # sync: once a rollout

    def judged_by(self, policy: Policy, version: int) -> Rollout:
        """The rollout as far as it goes, with `policy`'s values; until the next one is begun.

        Where `version` is not the one that acted, also with its log-probabilities. A few large
        forward passes replace T small ones.
        """
        acted = version == self.version and not self._has_older
        kept = self._as_far_as_it_goes()
        steps = max(1, _ROWS_AT_ONCE // self.n_envs)
        for t in range(0, len(kept.value), steps):
            some = {leaf: rows[t : t + steps].flatten(0, 1) for leaf, rows in kept.obs.items()}
            value = kept.value[t : t + steps].view(-1)
            if acted:
                value.copy_(policy.value(some))
                continue
            mask = kept.action_mask
            judged = policy.appraise(
                some,
                None if mask is None else mask[t : t + steps].flatten(0, 1),
                kept.action[t : t + steps].flatten(0, 1),
            )
            value.copy_(judged[0])
            kept.log_prob[t : t + steps].view(-1).copy_(judged[1])
        kept.last_value.copy_(policy.value(self._last_obs))
        self._judge_finals(policy)
        return kept._replace(log_prob=kept.behaviour_log_prob) if acted else kept

    def _as_far_as_it_goes(self) -> Rollout:
        """Without rows that nobody came to; and which n_steps * n_envs of the others to take."""
        valid, budget, chosen = self._host["valid"], self.n_steps * self.n_envs, None
        longest = self.n_steps
        if self.capacity > self.n_steps:
            came = (valid | self._host["truncated"]).any(1)
            longest = max(longest, int(came.sum()))
            order = np.argsort(~valid[:longest].ravel(), kind="stable")[:budget]
            chosen = torch.from_numpy(np.sort(order)).to(self.device)  # sync: once a rollout
        first: dict[str, Any] = {
            name: field[:longest] if isinstance(field, Tensor) else field
            for name, field in self._rollout._asdict().items()
        }
        obs = {leaf: value[:longest] for leaf, value in self._rollout.obs.items()}
        last_value = self._rollout.last_value
        return Rollout(**first | {"obs": obs, "last_value": last_value, "chosen": chosen})

    def _judge_finals(self, policy: Policy) -> None:
        """V(final_obs) where an episode was truncated."""
        final_value = self._rollout.final_value.zero_().view(-1)
        if not self._finals:
            return
        flat = torch.from_numpy(np.concatenate([places for places, _ in self._finals]))
        for some in torch.arange(len(flat)).split(_ROWS_AT_ONCE):
            seen = {}
            for leaf in self._last_obs:
                rows = np.concatenate([obs[leaf] for _, obs in self._finals])
                seen[leaf] = torch.from_numpy(rows)[some].to(self.device)  # sync: pageable memory
            place = flat[some].to(self.device)  # sync: likewise
            final_value.index_copy_(0, place, policy.value(seen))
