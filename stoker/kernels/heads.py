"""Action distributions of `nn.heads` as functions of raw outputs [..., outputs], without masks.

The twins of `heads_on_gpu`, and what tells its kernels a distribution's shape.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

HEADS = ("categorical", "bernoulli", "gaussian")


def starts(nvec: tuple[int, ...]) -> tuple[int, ...]:
    """Where each column's choices begin among the raw outputs, and where the last ones end."""
    return tuple(accumulate(nvec, initial=0))


def sample(
    head: str, nvec: tuple[int, ...], raw: Tensor, log_std: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Actions [..., A] drawn from the distribution, and their log-probabilities [...]."""
    if head == "categorical":
        action = torch.stack(
            [
                (_log_probs(raw, *ends) - noise[..., i, : nvec[i]].log()).argmax(-1)
                for i, ends in enumerate(pairwise(starts(nvec)))
            ],
            -1,
        )
    elif head == "bernoulli":
        action = (noise < raw.sigmoid()).long()
    else:
        assert log_std is not None
        action = raw + log_std.exp() * noise
    return action, measure(head, nvec, raw, log_std, action)[0]


def measure(
    head: str, nvec: tuple[int, ...], raw: Tensor, log_std: Tensor | None, action: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of `action` [..., A] and entropy of the distribution, [...] each."""
    if head == "categorical":
        log_prob, entropy = torch.zeros_like(raw[..., 0]), torch.zeros_like(raw[..., 0])
        for i, ends in enumerate(pairwise(starts(nvec))):
            log_probs = _log_probs(raw, *ends)
            log_prob = log_prob + log_probs.gather(-1, action[..., i : i + 1]).squeeze(-1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(-1)
        return log_prob, entropy
    if head == "bernoulli":
        flips = F.binary_cross_entropy_with_logits(raw, action.to(raw.dtype), reduction="none")
        return -flips.sum(-1), (F.softplus(raw) - raw * raw.sigmoid()).sum(-1)
    assert log_std is not None
    deviations = (action - raw) * torch.exp(-log_std)
    log_prob = (-0.5 * deviations**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    return log_prob, (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1).expand_as(log_prob)


def _log_probs(raw: Tensor, first: int, last: int) -> Tensor:
    """Of one column's choices, which are the raw outputs from `first` to `last`."""
    return F.log_softmax(raw[..., first:last], dim=-1)
