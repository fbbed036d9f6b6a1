"""A shuffle without a sort: every row computes its own place, all epochs in one kernel.

The permutation is a Feistel network in mixed radix. A number below a * b is split into two digits,
below a and below b, and each round adds a hash of one digit to the other: so it can be undone, so
no two numbers meet.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDS = 6
BLOCK = 1024
"""Rows of a minibatch whose advantages are summed up together."""
_SMALLEST_RADIX = 8  # below it, too few of the permutations can be reached
_WORD = 0xFFFFFFFF
FIRST_FACTOR, SECOND_FACTOR = 0x85EBCA6B, 0xC2B2AE35  # MurmurHash3's finaliser
GOLDEN = 0x9E3779B9


def radices(rows: int) -> tuple[int, int]:
    """(a, b) with a * b = rows and a <= b, as near to each other as can be."""
    a = next(a for a in range(math.isqrt(rows), 0, -1) if rows % a == 0)
    return a, rows // a


def usable(rows: int) -> bool:
    """Whether so many rows are shuffled well; else they are to be sorted by random numbers."""
    return radices(rows)[0] >= _SMALLEST_RADIX


def shuffled(
    keys: Tensor, epochs: int, n: int, steps: int, advantage: Tensor, minibatches: int
) -> tuple[Tensor, Tensor]:
    """The order in which each agent's rows are learned from, and how their advantages spread.

    Of K agents, agent k has steps * n rows, and `keys` [K] int64 says how they are shuffled.
    `index` [epochs, minibatches, K, B] int32 holds memory rows (see `mlp`). `spread` [epochs,
    minibatches, K, parts, 3] has the (count, mean, sum of squared deviations) of `advantage`
    [steps, K * n] over up to `BLOCK` rows of a minibatch each. The minibatches must divide the
    rows.
    """
    if steps * n % minibatches:
        raise ValueError(f"{minibatches} minibatches do not divide {steps} x {n} rows.")
    if keys.is_cuda:
        from stoker.kernels import shuffle_on_gpu

        return shuffle_on_gpu.shuffled(keys, epochs, n, steps, advantage, minibatches)
    return shuffled_twin(keys, epochs, n, steps, advantage, minibatches)


def shuffled_twin(
    keys: Tensor, epochs: int, n: int, steps: int, advantage: Tensor, minibatches: int
) -> tuple[Tensor, Tensor]:
    """`shuffled`, in plain torch."""
    agents, rows = len(keys), steps * n
    low, high = epoch_keys(keys, epochs)
    local = permuted(torch.arange(rows, device=keys.device), low, high, *radices(rows))
    agent = torch.arange(agents, device=keys.device)[:, None]
    of_agents = (local // n * agents + agent) * n + local % n
    index = of_agents.unflatten(-1, (minibatches, -1)).transpose(1, 2).contiguous()
    parts = []
    for part in advantage.flatten()[index].split(BLOCK, -1):
        mean = part.mean(-1)
        squares = ((part - mean[..., None]) ** 2).sum(-1)
        parts.append(torch.stack([torch.full_like(mean, part.shape[-1]), mean, squares], -1))
    return index.int(), torch.stack(parts, -2)


def epoch_keys(keys: Tensor, epochs: int) -> tuple[Tensor, Tensor]:
    """Two words [epochs, K, 1] that an epoch's shuffle follows from."""
    epoch = torch.arange(epochs, device=keys.device)[:, None]
    low = mixed((keys & _WORD) ^ mixed(epoch * GOLDEN & _WORD))
    high = mixed((keys >> 32 & _WORD) + low & _WORD)
    return low[..., None], high[..., None]


def permuted(position: Tensor, low: Tensor, high: Tensor, a: int, b: int) -> Tensor:
    """Where each position below a * b goes, under the keys `low` and `high`."""
    left, right = position // b, position % b
    for i in range(ROUNDS):
        left = (left + mixed(right ^ mixed(low + 2 * i * GOLDEN & _WORD)) % a) % a
        right = (right + mixed(left ^ mixed(high + (2 * i + 1) * GOLDEN & _WORD)) % b) % b
    return left * b + right


def mixed(word: Tensor) -> Tensor:
    """MurmurHash3's finaliser of 32-bit words, held in int64."""
    word = word ^ word >> 16
    word = word * FIRST_FACTOR & _WORD
    word = word ^ word >> 13
    word = word * SECOND_FACTOR & _WORD
    return word ^ word >> 16
