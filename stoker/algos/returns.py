"""Advantages and returns over a rollout [T, N]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stoker.nn.normalise import RunningMoments


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    valid: Tensor,
    last_value: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates [T, N]; 0 where a row is not valid.

    A step's successor is worth V of the next observation; where the episode was truncated,
    V(final_obs); where it terminated, nothing. Lambda is cut at every episode's end and at rows
    that are not valid, so that nothing leaks from one episode into another. The last step of the
    rollout bootstraps from `last_value`.
    """
    next_value = torch.cat([value[1:], last_value[None]])
    ended = terminated | truncated
    successor = torch.where(ended, final_value.masked_fill(terminated, 0.0), next_value)
    surprise = torch.where(valid, reward + gamma * successor - value, 0.0)
    carry = gamma * gae_lambda * (valid & ~ended)
    advantage = torch.empty_like(value)
    running = torch.zeros_like(last_value)
    for t in range(len(value) - 1, -1, -1):
        running = torch.addcmul(surprise[t], carry[t], running, out=advantage[t])
    return advantage


def discounted_sums(
    reward: Tensor, ended: Tensor, carried: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Forward discounted sums [T, N] of each episode's rewards, and what the next rollout carries.

    Row t is the sum over its episode so far of gamma^(t - k) r_k. `carried` [N] is what the
    rollout before left: gamma times its last sum, or 0 where an episode ended.
    """
    sums = torch.empty_like(reward)
    keep = gamma * (~ended).to(reward.dtype)
    for t in range(len(reward)):
        torch.add(reward[t], carried, out=sums[t])
        carried = keep[t] * sums[t]
    return sums, carried


class ReturnScaler(nn.Module):
    """Divides rewards by the running deviation of the discounted return."""

    carried: Tensor

    def __init__(self, n_envs: int, gamma: float) -> None:
        super().__init__()
        self._gamma = gamma
        self.moments = RunningMoments(1)
        self.register_buffer("carried", torch.zeros(n_envs))

    @torch.no_grad()
    def forward(self, reward: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """The scaled rewards [T, N]; the statistics take this rollout in first."""
        counted = torch.where(valid, reward, 0.0)
        sums, carried = discounted_sums(counted, ended, self.carried, self._gamma)
        self.carried.copy_(carried)
        self.moments.update(sums.reshape(-1, 1), valid.flatten())
        return self.moments.shrink(reward)
