"""Random numbers that follow from a seed, an environment, a step and a call, in tensors.

Widynski's "squares": a counter times a key, squared and turned a few times. There is no state to
advance but the count of steps, so a CUDA graph can be replayed, and a row gets the same numbers in
any batch. Whole numbers of 64 bits that wrap around are computed alike on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_LOW_HALF = 0xFFFFFFFF
MOST_ENVS = 1 << 24
_MOST_NUMBERS = 1 << 10  # that one environment may ask for in one call


class TensorRng:
    """Implements `types.Rng` for the environments `ids` [n] with `keys` [n], at `step` [].

    Calls are told apart by counting them, so every step has to make the same ones.
    """

    def __init__(self, keys: Tensor, ids: Tensor, step: Tensor) -> None:
        self._keys, self._place, self._calls = keys, (step * MOST_ENVS + ids) * _MOST_NUMBERS, 0

    def uniform(self, *tail: int) -> Tensor:
        """From 0 to 1, float32 [n, *tail], never 1."""
        count = math.prod(tail)
        if count > _MOST_NUMBERS:
            raise ValueError(f"{count} numbers at once; ask for {_MOST_NUMBERS} at most a call.")
        self._calls += 1
        keys = (self._keys + _signed(self._calls * _GOLDEN)) | 1
        number = torch.arange(count, device=keys.device)
        words = squares((self._place[:, None] + number).mul(keys[:, None]), keys[:, None])
        return ((words >> 8).float() * 2.0**-24).view(len(keys), *tail)

    def normal(self, *tail: int) -> Tensor:
        """Of mean 0 and deviation 1, float32 [n, *tail], by Box and Muller."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform(*tail)))
        return radius * torch.cos(2 * math.pi * self.uniform(*tail))


def squares(product: Tensor, key: Tensor) -> Tensor:
    """32 random bits for every counter times key; int64."""
    second = product + key
    mixed = _turned(product * product + product)
    mixed = _turned(mixed * mixed + second)
    mixed = _turned(mixed * mixed + product)
    return _upper(mixed * mixed + second)


def key_of(seed: Tensor) -> Tensor:
    """A key whose digits are as good as random, for a seed; int64."""
    mixed = seed * _signed(_GOLDEN)
    for odd in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ _upper(mixed)) * _signed(odd)
    return mixed ^ _upper(mixed)


def _turned(word: Tensor) -> Tensor:
    """Its halves swapped."""
    return (word << 32) | _upper(word)


def _upper(word: Tensor) -> Tensor:
    return (word >> 32) & _LOW_HALF


def _signed(number: int) -> int:
    """Its low 64 bits, as torch writes them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
