"""Random draws that are the same on every machine and in every version of Python.

SplitMix64 on whole numbers: the standard library promises stability for `random()` alone, and a
site needs thousands of short streams, one for each page, that cost nothing to start. Its state only
ever grows by a constant, so many draws can be made at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

_FIRST = 3
"""Words that a stream makes one by one, as the fate of a request needs no more: NumPy pays from
about ten on."""
_BLOCKS = (64, 1024)
"""Words that a stream makes at once after those: so many, then twice as many each time up to the
last. Unused ones cost less than another call."""
_STEPS = np.arange(1, _BLOCKS[1] + 1, dtype=np.uint64) * np.uint64(_STEP)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FACTORS[0]) & _MASK
    value = ((value ^ (value >> 27)) * _FACTORS[1]) & _MASK
    return value ^ (value >> 31)


def _mix_many(values: np.ndarray) -> np.ndarray:
    """`_mix` of each; whole numbers of 64 bits wrap in NumPy on every machine."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FACTORS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return values ^ (values >> np.uint64(31))


def number_of(text: str) -> int:
    """A whole number of 64 bits that stands for a text, the same everywhere."""
    coded = text.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(coded, digest_size=8).digest(), "big")


class Draws:
    """A stream of draws that follows from a few whole numbers.

    `chance` and `pick` write out `uniform` and `below`, as pages are made of little else.
    """

    __slots__ = ("_ahead", "_block", "_state")

    def __init__(self, *parts: int) -> None:
        state = 0
        for part in parts:
            state = _mix((state + _STEP + (part & _MASK)) & _MASK)
        self._state = state
        """Where the words after those in `_ahead` come from."""
        self._ahead: list[int] = []
        """Words made and not yet given, the next one last."""
        self._block = _FIRST

    def then(self, part: int) -> Draws:
        """The stream of the same whole numbers and one more; nothing may be drawn from this one."""
        following = Draws()
        following._state = _mix((self._state + _STEP + (part & _MASK)) & _MASK)
        return following

    def word(self) -> int:
        """The next 64 bits."""
        if not self._ahead:
            self._make_more()
        return self._ahead.pop()

    def _make_more(self) -> None:
        count, start = self._block, self._state
        self._state = (start + count * _STEP) & _MASK
        if count == _FIRST:
            steps = range(count, 0, -1)
            self._ahead = [_mix((start + step * _STEP) & _MASK) for step in steps]
            self._block = _BLOCKS[0]
        else:
            self._ahead = _mix_many(_STEPS[count - 1 :: -1] + np.uint64(start)).tolist()
            self._block = min(2 * count, _BLOCKS[1])

    def below(self, limit: int) -> int:
        """A whole number from 0 to `limit` - 1."""
        return (self.word() * limit) >> 64

    def uniform(self) -> float:
        """A number in [0, 1); its 53 bits are exact, so it is the same everywhere."""
        return (self.word() >> 11) * 2.0**-53

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return (self.word() >> 11) * 2.0**-53 < probability

    def pick(self, among: Sequence[T]) -> T:
        """One of them, each as likely."""
        return among[(self.word() * len(among)) >> 64]

    def pick_some(self, among: Sequence[T], count: int) -> list[T]:
        """So many of them, with repetition: eight for every 64 bits, for text by the paragraph."""
        size = len(among)
        drawn = b"".join([self.word().to_bytes(8, "big") for _ in range(0, count, 8)])
        return [among[(byte * size) >> 8] for byte in drawn[:count]]

    def shuffled(self, among: Sequence[T]) -> list[T]:
        """All of them in a random order."""
        order = list(among)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order
