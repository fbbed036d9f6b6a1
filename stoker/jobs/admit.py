"""How many jobs at once: from what there is and what one of them takes to a number, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from stoker.config.numbers import counted

_KEPT_FREE = 0.1
"""Share of a memory that is not given away: what a job takes still grows a little."""
_WORTH = 0.1
"""Of a GPU: a job that would find less of it idle is not worth its while."""


class Need(NamedTuple):
    """What one job was seen to take; None is unknown."""

    gpu_gib: float | None = None
    host_gib: float | None = None
    gpu_share: float | None = None
    """Of the time that the GPU computes at all (busy); with MPS, of its multiprocessors."""


class Room(NamedTuple):
    """What there is for jobs; None is unknown."""

    cores: int
    gpu_free_gib: float | None = None
    host_free_gib: float | None = None


class Admission(NamedTuple):
    """How many jobs at once, and what says so."""

    at_once: int
    reasons: tuple[str, ...]
    """Every limit in words, the tightest first; then what is unknown."""


class _Limit(NamedTuple):
    most: int
    words: str


def admit(wanted: int, cores_each: int, room: Room, need: Need) -> Admission:
    """As many of the `wanted` jobs as fit at once, but one at least."""
    limits = sorted(_limits(cores_each, room, need), key=lambda limit: limit.most)
    at_once = max(1, min([wanted, *(limit.most for limit in limits)]))
    unknown = ", ".join(_unknown(room, need))
    told = [limit.words for limit in limits] + ([f"unknown: {unknown}"] if unknown else [])
    return Admission(at_once, tuple(told))


def _limits(cores_each: int, room: Room, need: Need) -> Iterator[_Limit]:
    most = room.cores // cores_each
    yield _Limit(most, f"{counted(room.cores, 'core')}, {cores_each} or more each: {most} at most")
    for what, free, each in (
        ("GPU memory", room.gpu_free_gib, need.gpu_gib),
        ("memory", room.host_free_gib, need.host_gib),
    ):
        if free is not None and each:
            most = math.floor((1 - _KEPT_FREE) * free / each)
            words = f"{free:.1f} GiB of {what} free, {each:.1f} taken by one: {most} at most"
            yield _Limit(most, words)
    share = need.gpu_share
    if share is not None and share > 0:
        most = max(1, math.floor(1 / share + 1 - _WORTH))
        yield _Limit(most, f"one keeps {share:.0%} of the GPU at work: {most} fill it")


def _unknown(room: Room, need: Need) -> Iterator[str]:
    if room.gpu_free_gib is None or need.gpu_gib is None:
        yield "GPU memory"
    if need.gpu_share is None:
        yield "how much of the GPU is idle"
    if room.host_free_gib is None or need.host_gib is None:
        yield "memory of a job"
