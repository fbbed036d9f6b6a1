"""Advantages and returns over a rollout [T, N]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stoker.kernels import scan
from stoker.nn.normalise import RunningMoments, scaled
from stoker.types import Rollout, as_it_is


def gae(rollout: Rollout, reward: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates [T, N]; 0 where a row is not valid.

    A step's successor is worth V of the next observation; where the episode was truncated,
    V(final_obs); where it terminated, nothing. Lambda is cut at every episode's end and at cuts
    (see `Rollout`), so that nothing leaks from one episode into another; a gap is passed over. The
    last step of the rollout bootstraps from `last_value`. `reward` is its own, or a normalised one.
    """
    value, valid, terminated = rollout.value, rollout.valid, rollout.terminated
    ended = terminated | rollout.truncated
    gap = ~(valid | ended)
    next_value = _next_seen(value, gap, rollout.last_value)
    successor = torch.where(ended, rollout.final_value.masked_fill(terminated, 0.0), next_value)
    surprise = torch.where(valid, reward + gamma * successor - value, 0.0)
    carry = gamma * gae_lambda * (valid & ~ended) + gap.to(value.dtype)
    return scan.backward(surprise, carry).masked_fill_(gap, 0.0)


def _next_seen(value: Tensor, gap: Tensor, last_value: Tensor) -> Tensor:
    """V of the next observation that the policy saw, [T, N]: the next row that is no gap."""
    steps = len(value)
    row = torch.arange(steps, device=value.device)[:, None].expand_as(gap).masked_fill(gap, steps)
    here_or_later = row.flip(0).cummin(0).values.flip(0)
    none_left = here_or_later.new_full((1, value.shape[1]), steps)
    later = torch.cat([here_or_later[1:], none_left])
    return torch.cat([value, last_value[None]]).gather(0, later)


def discounted_sums(
    reward: Tensor, ended: Tensor, valid: Tensor, carried: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Forward discounted sums [T, N] of each episode's rewards, and what the next rollout carries.

    Row t is the sum over its episode so far of gamma^(t - k) r_k. `carried` [N] is what the
    rollout before left: gamma times its last sum, or 0 where an episode ended. Rows that are not
    valid have no reward, and gaps take no time.
    """
    keep = torch.where(valid, gamma, 1.0).masked_fill(ended, 0.0).to(reward.dtype)
    return scan.forward(torch.where(valid, reward, 0.0), keep, carried)


class ReturnScaler(nn.Module):
    """Divides rewards by the running deviation of the discounted return.

    Environments may belong to several agents, an equal share each: then each has its own deviation.
    """

    carried: Tensor

    def __init__(self, n_envs: int, gamma: float, agents: int = 1) -> None:
        super().__init__()
        self._gamma, self.way = gamma, as_it_is
        """How the statistics are run; something that compiles may take its place."""
        self.moments = RunningMoments(1, agents)
        self.register_buffer("carried", torch.zeros(n_envs))

    @torch.no_grad()
    def forward(self, reward: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """The scaled rewards [T, N]; the statistics take this rollout in first."""
        sums, carried = discounted_sums(reward, ended, valid, self.carried, self._gamma)
        self.carried.copy_(carried)
        return self.way(scaled)(self.moments.own(), reward, sums, valid)
