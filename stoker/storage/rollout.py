"""T steps of N environments on the device, written in place, never reallocated."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor

from stoker.types import DeviceObs, EnvSpec, PolicyOutput, Rollout, StepBatch

_VALUE_ROWS = 8192  # of one forward pass: enough to fill a GPU, little enough for its memory
_FIXED_BYTES = 4 * 4 + 8 + 3  # log-probability, two values, reward; version; three flags


class RolloutStorage:
    """Decisions are written as they are taken; outcomes are staged on the host, one copy a rollout.

    What a host pool reports (reward and flags) is a few bytes a row: copying it every step would
    cost four transfers a step. Observations and decisions are on the device already.
    """

    def __init__(self, spec: EnvSpec, n_steps: int, n_envs: int, device: torch.device) -> None:
        shape = (n_steps, n_envs)
        self.n_steps, self.n_envs, self.device = n_steps, n_envs, device
        discrete = not spec.action.continuous

        def field(*tail: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, *tail, dtype=dtype, device=device)

        self._rollout = Rollout(
            obs={
                name: field(*leaf.shape, dtype=getattr(torch, leaf.dtype))
                for name, leaf in spec.observation.items()
            },
            action=field(spec.action.width, dtype=torch.int64 if discrete else torch.float32),
            action_mask=field(spec.mask_width, dtype=torch.bool) if spec.has_mask else None,
            behaviour_log_prob=field(),
            policy_version=field(dtype=torch.int64),
            value=field(),
            reward=field(),
            terminated=field(dtype=torch.bool),
            truncated=field(dtype=torch.bool),
            final_value=field(),
            valid=field(dtype=torch.bool),
            last_value=torch.zeros(n_envs, device=device),
        )
        pinned = device.type == "cuda"
        self._staged = {
            name: torch.zeros(shape, dtype=dtype, pin_memory=pinned)
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
        """Bytes that a rollout of this shape takes on the device."""
        leaves = spec.observation.values()
        observed = sum(prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
        acted = spec.action.width * (4 if spec.action.continuous else 8) + spec.mask_width
        return n_steps * n_envs * (observed + acted + _FIXED_BYTES) + 4 * n_envs

    def begin(self, version: int) -> None:
        """Make ready for a rollout under the weights called `version`."""
        self._rollout.policy_version.fill_(version)
        self._rollout.final_value.zero_()

    def write_decision(
        self, t: int, obs: DeviceObs, mask: Tensor | None, output: PolicyOutput
    ) -> None:
        """What the policy saw and did at step `t`."""
        kept = self._rollout
        for leaf, value in obs.items():
            kept.obs[leaf][t].copy_(value)
        if mask is not None and kept.action_mask is not None:
            kept.action_mask[t].copy_(mask)
        kept.action[t].copy_(output.action)
        kept.behaviour_log_prob[t].copy_(output.log_prob)

    def write_outcome(self, t: int, batch: StepBatch) -> None:
        """What came of it, for everyone, in the order of the environments."""
        for name, staged in self._host.items():
            staged[t] = getattr(batch, name)

    def write_final_value(self, t: int, truncated: np.ndarray, value: Tensor) -> None:
        """V(final_obs) of the rows that step `t` truncated."""
        where = torch.from_numpy(truncated.copy()).to(self.device)  # sync: from pageable memory
        self._rollout.final_value[t].copy_(torch.where(where, value, 0.0))

    def finish(self, value: Callable[[DeviceObs], Tensor], last_obs: DeviceObs) -> Rollout:
        """The whole rollout, valid until the next one is begun.

        `value` is V under the weights that acted, and `last_obs` what the last step led to. A few
        large forward passes replace T small ones.
        """
        kept = self._rollout
        for name, staged in self._staged.items():
            getattr(kept, name).copy_(staged, non_blocking=True)
        steps = max(1, _VALUE_ROWS // self.n_envs)
        for t in range(0, self.n_steps, steps):
            some = {leaf: rows[t : t + steps].flatten(0, 1) for leaf, rows in kept.obs.items()}
            kept.value[t : t + steps].view(-1).copy_(value(some))
        kept.last_value.copy_(value(last_obs))
        return kept
