"""Random draws that are the same on every machine and in every version of Python.

SplitMix64 on whole numbers: the standard library promises stability for `random()` alone, and a
site needs thousands of short streams, one for each page, that cost nothing to start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def number_of(text: str) -> int:
    """A whole number of 64 bits that stands for a text, the same everywhere."""
    coded = text.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(coded, digest_size=8).digest(), "big")


class Draws:
    """A stream of draws that follows from a few whole numbers."""

    __slots__ = ("_state",)

    def __init__(self, *parts: int) -> None:
        state = 0
        for part in parts:
            state = _mix((state + _STEP + (part & _MASK)) & _MASK)
        self._state = state

    def word(self) -> int:
        """The next 64 bits: `_mix`, written out because pages are made of little else."""
        self._state = value = (self._state + _STEP) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def below(self, limit: int) -> int:
        """A whole number from 0 to `limit` - 1."""
        return (self.word() * limit) >> 64

    def uniform(self) -> float:
        """A number in [0, 1); its 53 bits are exact, so it is the same everywhere."""
        return (self.word() >> 11) * 2.0**-53

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self.uniform() < probability

    def pick(self, among: Sequence[T]) -> T:
        """One of them, each as likely."""
        return among[self.below(len(among))]

    def pick_some(self, among: Sequence[T], count: int) -> list[T]:
        """So many of them, with repetition: eight for every 64 bits, for text by the paragraph."""
        size = len(among)
        chosen: list[T] = []
        while len(chosen) < count:
            chosen += [among[(byte * size) >> 8] for byte in self.word().to_bytes(8, "big")]
        return chosen[:count]

    def shuffled(self, among: Sequence[T]) -> list[T]:
        """All of them in a random order."""
        order = list(among)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order
