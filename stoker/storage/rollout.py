"""T steps of N environments on the device, written in place, never reallocated."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from stoker.types import DeviceObs, EnvSpec, Finals, Policy, PolicyOutput, Rollout


class RolloutStorage:
    """A collector fills it (`begin`, `write_...`, `end`), then a learner has it judged.

    Where environments step decides how outcomes get here: `StagedStorage` takes them from the
    host, `DeviceStorage` from the device. A row without an outcome is a gap.
    """

    rows_at_once = 8192
    """Of one forward pass: enough to fill a GPU, little enough for its memory."""

    def __init__(
        self, spec: EnvSpec, n_steps: int, n_envs: int, device: torch.device, capacity: int = 0
    ) -> None:
        self.n_steps, self.n_envs, self.device = n_steps, n_envs, device
        self.capacity = rows = capacity or n_steps
        """Steps that one environment may have, where others have fewer; by default as many."""
        self.version = 0
        """Of the weights that acted."""
        self._has_older = False

        def field(*tail: int, dtype: torch.dtype = torch.float32) -> Tensor:
            # One row too many: whoever acts for everyone at once, as a CUDA graph must, sends there
            # what is not wanted.
            return torch.zeros(rows + 1, n_envs, *tail, dtype=dtype, device=device)

        leaves = spec.observation.items()
        self._rollout = Rollout(
            obs={n: field(*leaf.shape, dtype=getattr(torch, leaf.dtype)) for n, leaf in leaves},
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
        self._last_obs = {n: torch.zeros_like(rows[0]) for n, rows in self._rollout.obs.items()}

    @property
    def steps_taken(self) -> int:
        """How many rows are transitions."""
        return self.n_steps * self.n_envs

    def begin(self, version: int) -> None:
        """Make ready for a rollout under the weights called `version`."""
        self.version, self._has_older = version, False
        self._rollout.policy_version.fill_(version)

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

    def end(self, last_obs: DeviceObs) -> None:
        """The rollout is full; `last_obs` is what the last steps led to."""
        for leaf, value in last_obs.items():
            self._last_obs[leaf].copy_(value)  # sync: once a rollout, where it is on the host

    def gathered(self) -> tuple[Rollout, Finals]:
        """The rollout as it is, judged by nobody, and what was seen where it was truncated."""
        return self._as_far_as_it_goes(), self._seen_last()

    @abstractmethod
    def _seen_last(self) -> Finals: ...

    def judged_by(self, policy: Policy, version: int) -> Rollout:
        """The rollout as far as it goes, with `policy`'s values; until the next one is begun.

        Where `version` is not the one that acted, also with its log-probabilities. A few large
        forward passes replace T small ones.
        """
        acted = version == self.version and not self._has_older
        kept = self._as_far_as_it_goes()
        steps = max(1, self.rows_at_once // self.n_envs)
        for part in (slice(t, t + steps) for t in range(0, len(kept.value), steps)):
            some = {leaf: rows[part].flatten(0, 1) for leaf, rows in kept.obs.items()}
            if acted:
                kept.value[part].view(-1).copy_(policy.value(some))
                continue
            mask = None if kept.action_mask is None else kept.action_mask[part].flatten(0, 1)
            value, log_prob = policy.appraise(some, mask, kept.action[part].flatten(0, 1))
            kept.value[part].view(-1).copy_(value)
            kept.log_prob[part].view(-1).copy_(log_prob)
        kept.last_value.copy_(policy.value(self._last_obs))
        self._judge_finals(policy)
        return kept._replace(log_prob=kept.behaviour_log_prob) if acted else kept

    def _as_far_as_it_goes(self, steps: int | None = None, chosen: Tensor | None = None) -> Rollout:
        """The first `steps` (n_steps), of which the rows `chosen` (all) are to be learned from."""
        return self._rollout.first(steps or self.n_steps, chosen)

    def _judge_finals(self, policy: Policy) -> None:
        """V(final_obs) where an episode was truncated."""
        final_value = self._rollout.final_value.zero_().view(-1)
        place, seen = self._seen_last()
        for some in torch.arange(len(place)).split(self.rows_at_once) if len(place) else ():
            obs = {n: rows[some].to(self.device) for n, rows in seen.items()}  # sync: pageable
            final_value.index_copy_(0, place[some].to(self.device), policy.value(obs))  # sync: too
