"""Every framework of the guides on the same work: `python -m bench peers [--case C] [--peer P]`.

PPO with the same sizes for all; a peer whose own documents advise something else for speed has a
row for that, too. First everyone's speed, by turns (`bench.contest`), with what the GPU does and
what the host's memory holds; then how they learn, each from a fresh start: one seed alone, from
its start to a reward, and others at once, for the reward after equal steps. Who cannot do a case
has a row that says why. Without a GPU sizes are those of two cores, and only speed is compared.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from bench.contest import Entrant, Result, contest, race, say
from bench.peers.roster import HOST, MANY, NUMBERS, PEERS, TENSORS, TWO, WAITS, Peer, why_not
from bench.record import Cases, Row
from bench.seeds import interval
from bench.waiting import AWAITING, WAITING

_ON_GPU = torch.cuda.is_available()
_SEEDS = range(3)
_SECONDS = 3.0
"""Of a stretch, without a GPU."""
_ELSEWHERE = "on a CPU, `python -m bench parity` compares learning, with more steps and seeds"
OURS = "ours"


class Learning(NamedTuple):
    """What is asked of those who learn."""

    steps: int
    goal: float | None
    most_s: float  # in which to reach it
    why_no_goal: str | None = None


class Work(NamedTuple):
    """A case: what everyone trains on, and how much at once."""

    case: str
    env: str
    kinds: tuple[str, ...]
    envs: int
    steps: int
    arch: tuple[int, ...]
    epochs: int
    minibatches: int
    lr: float
    rounds: tuple[int, int]
    """Iterations of a round, of those who are quick and of others."""
    seconds: tuple[float, float]
    """Of a stretch, likewise."""
    learning: Learning | str
    """Or why that is not asked."""
    for_ours: Mapping[str, object] = {}
    """What ours is given otherwise."""
    needs: str | None = None
    """A package."""

    def asked(self, quick: bool, **more: object) -> dict[str, object]:
        """Arguments of a trainer; see `bench.peers.child.Task`."""
        which = 0 if quick else 1
        return {
            "env": self.env,
            "envs": self.envs,
            "steps": self.steps,
            "arch": ",".join(map(str, self.arch)),
            "epochs": self.epochs,
            "minibatches": self.minibatches,
            "lr": self.lr,
            "iterations": self.rounds[which] if _ON_GPU else 1,
            "seconds": self.seconds[which] if _ON_GPU else _SECONDS,
            **more,
        }

    @property
    def title(self) -> str:
        sizes = f"{self.envs} x {self.steps}, {'-'.join(map(str, self.arch))}"
        return f"{self.case}: {sizes}, {self.epochs} epochs x {self.minibatches}"

    @property
    def lacking(self) -> str | None:
        return self.needs if self.needs and find_spec(self.needs) is None else None


def _several(on_gpu: int, elsewhere: int) -> int:
    return on_gpu if _ON_GPU else elsewhere


CART_POLE = Work(
    "tensor, CartPole",
    "tensor/CartPole-v1",
    (TENSORS, TWO),
    _several(2048, 256),
    32,
    (64, 64),
    4,
    4,
    2.5e-3,  # 3e-4 takes some four million steps to the goal, too many for the slower ones
    (200, 2),
    (2.0, 1.2),
    Learning(655_360, 475.0, 6) if _ON_GPU else _ELSEWHERE,
)
MISSION = Work(
    "tensor, Mission",
    "tensor/Mission-v0",
    (TENSORS, MANY),
    _several(2048, 256),
    32,
    (256, 256),
    4,
    4,
    3e-4,
    (5, 1),
    (2.0, 1.2),
    Learning(
        655_360,
        None,
        45,
        "which reward these sizes come to in the time of this comparison was not known beforehand",
    )
    if _ON_GPU
    else _ELSEWHERE,
)
IN_NUMPY = Work(
    "cpu, Mission",
    "stoker/Mission-v0",
    (HOST, MANY),
    _several(32, 16),
    _several(256, 128),
    (1024, 512, 256) if _ON_GPU else (256, 256),
    _several(20, 4),
    _several(2, 4),
    3e-4,
    (1, 1),
    (2.0, 2.0),
    "missions in NumPy teach what the same missions as tensors do (`python -m bench curves`), and "
    "those take less time",
)
CHEETAH = Work(
    "cpu, HalfCheetah",
    "HalfCheetah-v5",
    (HOST, NUMBERS),
    _several(16, 4),
    _several(256, 512),
    (256, 256),
    4,
    4,
    3e-4,
    (4, 1),
    (2.0, 1.5),
    Learning(
        65_536,
        None,
        45,
        "the steps that fit into the time of this comparison are too few for a gait",
    )
    if _ON_GPU
    else _ELSEWHERE,
    needs="mujoco",
)
WAIT = Work(
    "wait, 50 ms a step",
    WAITING,
    (WAITS, TWO),
    _several(32, 8),
    16,
    (64, 64),
    4,
    4,
    3e-4,
    (1, 1),
    (2.5, 1.5),
    "it rewards nothing: what is compared is waiting",
    for_ours={"env": AWAITING, "envs": 1024},
)
WORKS = (CART_POLE, MISSION, IN_NUMPY, CHEETAH, WAIT)


def compare(work: Work, only: str = "") -> Iterator[Row]:
    """The rows of a case: those who cannot, then everyone's speed, then the same with learning."""
    peers = [peer for key, peer in PEERS.items() if only in key]
    able = []
    for peer in peers:
        reason = why_not(peer, work.kinds, work.lacking)
        if reason is None:
            able.append(peer)
        else:
            yield _row(work, None, None, peer.name, {"cannot": reason})
    if work.lacking or not able:
        return
    with tempfile.TemporaryDirectory() as caches:
        _keep_compiled_in(caches)
        say("begins", case=work.title, peers=[peer.name for peer in able])
        results = contest(list(_entrants(work, able)))
        yield from _rows(work, results, {})
        if isinstance(work.learning, Learning):
            yield from _rows(work, results, _learn(work, work.learning, able))


def _keep_compiled_in(folder: str) -> None:
    """What compilers make stays for this case, so that nobody begins twice with nothing."""
    os.environ |= {
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
    }


def _entrants(work: Work, peers: Iterable[Peer]) -> Iterator[Entrant]:
    yield Entrant(OURS, "ours", work.asked(True, **work.for_ours))
    for peer in peers:
        quick = peer.module == "whole_loop_jax"
        asked = work.asked(quick)
        repeats = 3 if quick else 2
        yield Entrant(peer.name, peer.module, asked, repeats, alone=quick)
        for kind in peer.own.keys() & set(work.kinds):
            name = f"{peer.name}, {peer.own[kind]}"
            yield Entrant(name, peer.module, {**asked, "own": True}, repeats)


def _learn(work: Work, learning: Learning, peers: Sequence[Peer]) -> dict[str, dict[str, Any]]:
    """By name: the reward after equal steps, of several seeds; and, where there is a goal, the
    time to it of the first one, which is alone on the machine."""
    names = {OURS: "ours", **{peer.name: peer.module for peer in peers}}
    found: dict[str, list[Result]] = {name: [] for name in names}
    alone = list(_SEEDS)[:1] if learning.goal is not None else []
    together = [seed for seed in _SEEDS if seed not in alone]
    enter = partial(_learner, work, learning)
    for seeds, at_once in ((alone, False), (together, True)):
        entrants = [enter(n, m, seed, not at_once) for n, m in names.items() for seed in seeds]
        for result in race(entrants, at_once) if entrants else ():
            found[result.entrant.name].append(result)
    return {name: _learned(learning, results) for name, results in found.items()}


def _learner(
    work: Work, learning: Learning, name: str, module: str, seed: int, timed: bool
) -> Entrant:
    """Rounds are short. Environments of those who are not timed step in the trainer's process."""
    ours = module == "ours"
    quick = ours or module == "whole_loop_jax"
    rounds = 5 if quick and TENSORS in work.kinds and _ON_GPU else 1
    wanted: dict[str, object] = {"learn-steps": learning.steps, "seed": seed, "iterations": rounds}
    wanted |= {"goal": learning.goal, "most-s": learning.most_s} if timed else {"most-s": 45}
    if ours:
        wanted |= dict(work.for_ours)
    elif HOST in work.kinds:
        wanted |= {"executor": "sync"}
    asked = work.asked(quick) | wanted
    return Entrant(name, module, asked)


def _learned(learning: Learning, results: Sequence[Result]) -> dict[str, Any]:
    lines = [result.lines[0] for result in results if result.lines]
    failures = [result.failure for result in results if result.failure]
    rewards = [line["reward"] for line in lines if line["reward"] is not None]
    known: dict[str, Any] = {
        "steps": learning.steps,
        "rewards": rewards,
        "reward": round(statistics.mean(rewards), 2) if rewards else None,
        "reward_interval_95": interval(rewards),
        "optimiser_steps": sorted({line["optimiser_steps"] for line in lines}, key=str),
        "failed": failures or None,
        "curve": lines[0]["curve"] if lines else None,
    }
    if learning.goal is None:
        return {**known, "goal": None, "why_no_goal": learning.why_no_goal}
    first = results[0]
    line = first.lines[0] if first.lines else {}
    trained, began = line.get("goal_s"), first.start_up_s
    to_goal = round(began + trained, 2) if trained is not None and began is not None else None
    return {
        **known,
        "goal": learning.goal,
        "start_up_s": began,
        "goal_training_s": trained,
        "goal_s": to_goal,
        "goal_steps": line.get("goal_steps"),
        "given_up_after_s": None if to_goal or not line else line.get("learning_s"),
    }


def _rows(
    work: Work, results: Sequence[Result], learned: Mapping[str, dict[str, Any]]
) -> Iterator[Row]:
    """One for ours, and one for each peer, the best first."""
    ours, *peers = results
    mine = round(ours.rate) if ours.lines else None
    yield _row(work, mine, None, None, _details(work, ours, learned))
    ranked = sorted(peers, key=lambda peer: -peer.rate if peer.lines else 0.0)
    for peer in ranked:
        rate = round(peer.rate) if peer.lines else None
        yield _row(work, mine, rate, peer.entrant.name, _details(work, peer, learned))


def _details(work: Work, result: Result, learned: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    peer = next((p for p in PEERS.values() if p.module == result.entrant.module), None)
    remarks = [] if peer is None else [t for kind, t in peer.remarks.items() if kind in work.kinds]
    if isinstance(work.learning, str):
        learning: Any = {"not_asked": work.learning}
    else:
        learning = learned.get(result.entrant.name)
    sizes = {name: result.entrant.asked[name] for name in ("env", "envs", "steps")}
    return {**result.summary(), "sizes": sizes, "remarks": remarks, "learning": learning}


def _row(
    work: Work, mine: float | None, rate: float | None, name: str | None, details: dict[str, Any]
) -> Row:
    ratio = round(mine / rate, 2) if mine and rate else None
    return Row("peers", work.title, mine, "steps/s", rate, name, ratio, details=details)


def _guarded(work: Work, only: str) -> Iterator[Row]:
    """What goes wrong in a case does not lose the others."""
    try:
        yield from compare(work, only)
    except Exception as error:
        yield _row(work, None, None, "everyone", {"failed": f"{type(error).__name__}: {error}"})


def cases_with(peer: str) -> Cases:
    """Against those alone whose names have `peer` in them."""
    if not any(peer in key for key in PEERS):
        raise ValueError(f"no peer has {peer!r} in its name: {', '.join(PEERS)}")
    return {work.case: partial(_guarded, work, peer) for work in WORKS}


CASES: Cases = cases_with("")
