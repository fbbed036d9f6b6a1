"""Rollouts that hold no more than their advantages follow from."""

from __future__ import annotations

from torch import Tensor

from stoker.types import Rollout


def judged(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    valid: Tensor,
    last_value: Tensor,
) -> Rollout:
    """Of steps [T, N]; the policy saw and did nothing, with probability 1."""
    nothing, version = reward.new_zeros(reward.shape), terminated.long() * 0
    ends = (terminated, truncated, final_value, valid, last_value)
    return Rollout({}, nothing, None, nothing, version, nothing, value, reward, *ends, chosen=None)
