"""Many agents trained side by side on one GPU, each with a seed of its own.

The peer is the whole loop in JAX, which trains them along one more axis of its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench import contest
from bench.contest import Entrant
from bench.record import Cases, Row, named

_AGENTS = 256 if torch.cuda.is_available() else 4
_ENVS, _STEPS = 4, 128


def _agents() -> Iterator[Row]:
    asked = {"agents": _AGENTS, "envs": _ENVS, "steps": _STEPS, "arch": "64,64", "iterations": 10}
    entrants = [
        Entrant("ours", "ours", asked),
        Entrant(named("jax"), "whole_loop_jax", asked, alone=True),
    ]
    case = f"{_AGENTS} agents, {_ENVS} x {_STEPS} each, 64-64"
    yield from contest.rows("population", case, contest.contest(entrants))


CASES: Cases = {"agents": _agents}
