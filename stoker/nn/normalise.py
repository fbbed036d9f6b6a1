"""Running mean and variance on the device, saved with the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_CLIP = 10.0
_EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of all rows seen, by Chan's parallel update, in float64.

    Statistics only move when `update` is called: once an iteration, after learning, so that a
    rollout is collected and learned under the same ones.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # What rows are shifted and scaled by: kept ready in float32, since every step uses them.
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    @torch.no_grad()
    def update(self, rows: Tensor, valid: Tensor) -> None:
        """Take in rows [n, width] where `valid` [n]."""
        weight = valid.to(torch.float64)
        rows = torch.where(valid[:, None], rows, 0).to(torch.float64)
        seen = weight.sum()
        mean = rows.sum(0) / seen.clamp(min=1)
        variance = ((rows - mean) ** 2 * weight[:, None]).sum(0) / seen.clamp(min=1)
        total = self.count + seen
        share = seen / total.clamp(min=1)
        gap = mean - self.mean
        # Before the first row the initial variance of 1 has weight 0, so it leaves no trace.
        spread = self.variance * (1 - share) + variance * share + gap**2 * share * (1 - share)
        self.variance.copy_(torch.where(seen > 0, spread, self.variance))
        self.mean.add_(gap * share)
        self.count.copy_(total)
        self.centre.copy_(self.mean)
        self.scale.copy_(torch.rsqrt(self.variance + _EPSILON))

    def standardise(self, rows: Tensor) -> Tensor:
        """Rows with mean 0 and deviation 1, cut off at ten deviations."""
        return ((rows - self.centre) * self.scale).clamp(-_CLIP, _CLIP)

    def shrink(self, rows: Tensor) -> Tensor:
        """Rows divided by the deviation alone, cut off likewise: for rewards."""
        return (rows * self.scale).clamp(-_CLIP, _CLIP)
