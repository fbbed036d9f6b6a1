"""Training on environments that are tensors: ours and the peers, on the same environments.

PPO of 4 epochs and 4 minibatches each, with actor and critic apart. Everyone trains in a process of
its own, by turns (`bench.contest`). Without a GPU there are fewer environments: to try it, no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench import contest
from bench.contest import Entrant
from bench.gaps import look_into
from bench.peers.child import Task
from bench.peers.ours import open_session, train_round
from bench.record import Cases, Row, named

_ON_GPU = torch.cuda.is_available()
_TRIED_WITH = 1 if _ON_GPU else 64
_PEERS = {"skrl": "skrl", "rsl_rl": "rsl-rl-lib", "rl_games": "rl-games"}
_DETERMINED, _PROFILED = 20, 20  # iterations


class Shape(NamedTuple):
    """How much is trained at once."""

    n_envs: int
    n_steps: int
    arch: tuple[int, ...]
    env: str = "tensor/CartPole-v1"

    @property
    def envs(self) -> int:
        return max(4, self.n_envs // _TRIED_WITH)

    def asked(self, iterations: int, seconds: float, **more: object) -> dict[str, object]:
        """Arguments of a trainer: iterations of a round, and seconds of a stretch."""
        arch = ",".join(map(str, self.arch))
        sizes = {"env": self.env, "envs": self.envs, "steps": self.n_steps, "arch": arch}
        return {**sizes, "iterations": iterations if _ON_GPU else 2, "seconds": seconds, **more}

    def __str__(self) -> str:
        return f"{self.envs} x {self.n_steps}, {'-'.join(map(str, self.arch))}"


SMALL = Shape(2048, 32, (64, 64))
LARGE = Shape(16384, 32, (64, 64))
WIDE = Shape(4096, 32, (1024, 512, 256))


def _speed(
    case: str, shape: Shape, precision: str, iterations: int, peers: tuple[str, ...]
) -> Iterator[Row]:
    """Rounds of `iterations`, which ought to last for a fifth of a second.

    Peers that are far behind are measured once, for a second.
    """
    fast, half, slow = (
        shape.asked(count, seconds, precision=precision)
        for count, seconds in ((iterations, 2.0), (iterations // 2, 1.5), (3, 1.0))
    )
    jax = Entrant(named("jax"), "whole_loop_jax", half, alone=True)
    entrants = [Entrant("ours", "ours", fast), jax]
    entrants += [Entrant(named(_PEERS[peer]), peer, slow, repeats=1) for peer in peers]
    yield from contest.rows("tensor", f"{case}: {shape}, {precision}", contest.contest(entrants))


def _mission() -> Iterator[Row]:
    """The same missions as tensors and in NumPy; those step in processes on all cores."""
    arch, cores = (256, 256), len(os.sched_getaffinity(0))
    tensors = Shape(2048, 32, arch, "tensor/Mission-v0")
    in_numpy = Shape(4 * cores * _TRIED_WITH, 64, arch, "stoker/Mission-v0")
    name = f"stoker/Mission-v0 in NumPy, {in_numpy}, {cores} cores"
    entrants = [
        Entrant("ours", "ours", tensors.asked(5, 2.0)),
        Entrant(name, "ours", in_numpy.asked(2, 2.0)),
        Entrant(named("skrl"), "skrl", tensors.asked(1, 1.0), repeats=1),
    ]
    yield from contest.rows("tensor", f"mission: {tensors}", contest.contest(entrants))


def _busy() -> Iterator[Row]:
    """How much of the time, and of the chip, ours uses; and how long it idles between kernels."""
    if not _ON_GPU:
        print("busy: this needs a GPU.", file=sys.stderr)
        return
    for name, shape, iterations in (("small", SMALL, 200), ("large", LARGE, 60)):
        # Rounds of a fifth of a second, at the end of which `stoker train` logs.
        found, used = look_into(_task(shape, iterations, seconds=3.0), _PROFILED)
        yield Row(
            "tensor",
            f"busy, {name}: {shape}",
            round(found.busy, 4),
            "share of time with a kernel running, by torch's profiler",
            ceiling=1.0,
            details={
                "gpu": used,
                "kernels_an_iteration": round(found.kernels / _PROFILED, 1),
                "iteration_us": round(found.iteration_us, 1),
                "longest_gap_us": round(found.longest_us, 1),
                "gaps_over_50_us": found.long,
                "after": found.after,
            },
        )


def _determinism() -> Iterator[Row]:
    """Whether the same seed gives the same bits again, and kernel by kernel as captured."""
    captured = "graph" if _ON_GPU else "eager"
    first, again = (_trained(captured) for _ in range(2))
    for case, other in (("again", again), ("kernel by kernel", _trained("eager"))):
        apart = [not torch.equal(value, other[name]) for name, value in first.items()]
        distances = [(v.double() - other[n].double()).abs().max() for n, v in first.items()]
        yield Row(
            "tensor",
            f"determinism, {case}: {SMALL}, fp32, {_DETERMINED} iterations",
            len(apart) - sum(apart),
            "tensors of the policy that are equal to the bit",
            ceiling=len(apart),
            details={"farthest_apart": float(max(distances)), "captured": captured == "graph"},
        )


def _trained(executor: str) -> dict[str, Tensor]:
    """The policy's tensors after some iterations."""
    task = _task(SMALL, _DETERMINED, precision="fp32", executor=executor)
    session = open_session(task, kernels="fused")  # as captured, so kernel by kernel
    try:
        train_round(session)
        return {name: value.cpu() for name, value in session.parts.policy.state_dict().items()}
    finally:
        session.parts.close()


def _task(
    shape: Shape,
    iterations: int,
    seconds: float = 0.0,
    precision: str = "tf32",
    executor: str = "auto",
) -> Task:
    """For one agent."""
    sizes = (shape.env, shape.envs, shape.n_steps, shape.arch)
    return Task(*sizes, 1, precision, executor, iterations, seconds, on_request=False)


CASES: Cases = {
    "small": partial(_speed, "small", SMALL, "tf32", 200, ("skrl", "rsl_rl", "rl_games")),
    "large": partial(_speed, "large", LARGE, "tf32", 40, ("skrl", "rsl_rl")),
    "wide-tf32": partial(_speed, "wide", WIDE, "tf32", 8, ("skrl", "rsl_rl")),
    "wide-bf16": partial(_speed, "wide", WIDE, "bf16", 12, ("rsl_rl",)),
    "busy": _busy,
    "mission": _mission,
    "determinism": _determinism,
}
