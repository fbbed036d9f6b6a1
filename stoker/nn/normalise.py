"""Running mean and variance on the device, saved with the model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

CLIP = 10.0
_EPSILON = 1e-8


class Moments(NamedTuple):
    """Of rows of some width: of one kind, or [K, ...] of K that are told apart."""

    mean: Tensor  # float64 [..., width]
    variance: Tensor  # float64 [..., width]
    seen: Tensor  # float64 [...], how many rows
    centre: Tensor  # [..., width], what rows are shifted and scaled by: kept ready in float32
    scale: Tensor  # [..., width]


@torch.no_grad()
def update(moments: Moments, rows: Tensor, valid: Tensor) -> None:
    """Take in rows [..., n, width] where `valid` [..., n], by Chan's parallel update.

    Not those that are NaN or infinite: one of them would spoil the statistics for ever.
    """
    valid = valid & rows.isfinite().all(-1)
    weight = valid.to(torch.float64)
    rows = torch.where(valid[..., None], rows, 0).to(torch.float64)
    seen = weight.sum(-1, keepdim=True)
    mean = rows.sum(-2) / seen.clamp(min=1)
    gaps = (rows - mean[..., None, :]) ** 2 * weight[..., None]
    variance = gaps.sum(-2) / seen.clamp(min=1)
    total = moments.seen[..., None] + seen
    share = seen / total.clamp(min=1)
    gap = mean - moments.mean
    # Before the first row the initial variance of 1 has weight 0, so it leaves no trace.
    spread = moments.variance * (1 - share) + variance * share + gap**2 * share * (1 - share)
    moments.variance.copy_(torch.where(seen > 0, spread, moments.variance))
    moments.mean.add_(gap * share)
    moments.seen.copy_(total[..., 0])
    moments.centre.copy_(moments.mean)
    moments.scale.copy_(torch.rsqrt(moments.variance + _EPSILON))


def shrunk(rows: Tensor, scale: Tensor) -> Tensor:
    """Rows divided by the deviation alone, cut off at ten deviations: for rewards."""
    return (rows * scale).clamp(-CLIP, CLIP)


def scaled(moments: Moments, rows: Tensor, like: Tensor, valid: Tensor) -> Tensor:
    """`rows` [T, K * n], shrunk by the deviation of `like` once its `valid` rows are taken in."""
    shape = (len(moments.seen), -1)
    taken, known = (x.unflatten(1, shape).transpose(0, 1).flatten(1) for x in (like, valid))
    update(moments, taken[..., None], known)
    return shrunk(rows.unflatten(1, shape), moments.scale).flatten(1)


NAMES = ("mean", "variance", "count", "centre", "scale")
"""Of the tensors of `Moments` in `RunningMoments`, and in a checkpoint."""


class RunningMoments(nn.Module):
    """Mean and variance of all rows seen, in float64.

    Statistics only move when `update` is called: once an iteration, after learning, so that a
    rollout is collected and learned under the same ones.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, width: int, *kinds: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(*kinds, width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(*kinds, width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(kinds, dtype=torch.float64))
        self.register_buffer("centre", torch.zeros(*kinds, width))
        self.register_buffer("scale", torch.ones(*kinds, width))

    def own(self) -> Moments:
        """The very tensors, for `update`."""
        return Moments(self.mean, self.variance, self.count, self.centre, self.scale)

    def update(self, rows: Tensor, valid: Tensor) -> None:
        """Take in rows [..., n, width] where `valid` [..., n]."""
        update(self.own(), rows, valid)

    def standardise(self, rows: Tensor) -> Tensor:
        """Rows with mean 0 and deviation 1, cut off at ten deviations."""
        return ((rows - self.centre) * self.scale).clamp(-CLIP, CLIP)
