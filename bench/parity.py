"""Does Stoker learn as Stable-Baselines3 does, with rl-baselines3-zoo's settings on both sides?

Every seed of either side trains in a process and a thread of its own, as many at once as there are
cores, by turns. What a seed gave is kept in `runs`, so that a bench that was interrupted goes on;
it is used again while the settings, the packages and the code that trains are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

from bench import grid
from bench.peers.trial import Trained, Trial, in_process
from bench.record import Cases, Row, named
from bench.seeds import difference, mean_of
from bench.turns import middle_ratio
from bench.zoo import ZOO, Case

_HOME = Path(__file__).parent.parent
_KEPT = _HOME / "runs" / "parity.jsonl"
_TIME_LIMIT_S = 12 * 3600.0
_AT_ONCE = len(os.sched_getaffinity(0))
_ALONE = 0.95  # of a core: who has less shares it with others, and is no measure of time
_SIDES = ("stoker", "sb3")
_PACKAGES = ("stable-baselines3", "torch", "numpy", "gymnasium", "box2d", "mujoco", "ale-py")


def trial_of(case: Case, side: str, seed: int) -> Trial:
    """A seed of a side."""
    settings, env = case.ours if side == "stoker" else case.theirs, case.make or case.env
    return Trial(side, case.algo, env, case.steps, seed, case.n_envs, case.normalize, settings)


def _parity(case: Case) -> Iterator[Row]:
    trials = [trial_of(case, side, seed) for seed in range(case.seeds) for side in _SIDES]
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        ended = list(workers.map(_trained, trials))
    ours, theirs = ended[::2], ended[1::2]
    yield _row(case, ours, theirs)


def _row(case: Case, ours: list[Trained], theirs: list[Trained]) -> Row:
    both = {"ours": ours, "peer": theirs}
    rewards = {side: [run.reward for run in runs] for side, runs in both.items()}
    trained = {side: [run.episodes_reward for run in runs] for side, runs in both.items()}
    curves = [[run.curve for run in runs] for runs in both.values()]
    gap, training_gap = difference(*rewards.values()), difference(*trained.values())
    return Row(
        "parity",
        f"{case.algo} {case.env}",
        mean_of(rewards["ours"]).mean,
        "evaluated reward, the mean over seeds",
        mean_of(rewards["peer"]).mean,
        named("stable-baselines3"),
        details={
            "steps": case.steps,
            "seeds": case.seeds,
            "interval": {side: mean_of(values).ends for side, values in rewards.items()},
            "difference": gap,
            "significant": gap.leaves_out_zero,
            "rewards": {side: [round(x, 2) for x in values] for side, values in rewards.items()},
            "training_episodes": {
                **{side: mean_of(values) for side, values in trained.items()},
                "difference": training_gap,
                "significant": training_gap.leaves_out_zero,
            },
            **_time(both),
            "over_steps": grid.over_steps(*curves),
            "over_seconds": grid.over_seconds(*curves),
            "apart": [*case.apart, *_shortened(case)],
            "settings": {"ours": case.ours, "peer": case.theirs},
            "at_once": _AT_ONCE,
            "packages": _packages(),
        },
    )


def _time(both: dict[str, list[Trained]]) -> dict[str, Any]:
    """Seconds of training, and whether they count: each must have had its core for itself."""
    wall = {side: [run.wall_s for run in runs] for side, runs in both.items()}
    cpu = {side: [run.cpu_s for run in runs] for side, runs in both.items()}
    shares = [run.cpu_s / run.wall_s for runs in both.values() for run in runs]
    return {
        "wall_s": {side: mean_of(values) for side, values in wall.items()},
        "cpu_s": {side: mean_of(values) for side, values in cpu.items()},
        "times_as_fast": round(middle_ratio(wall["peer"], wall["ours"]), 2),
        "least_share_of_a_core": round(min(shares), 2),
        "wall_clock_counts": min(shares) >= _ALONE,
    }


def _shortened(case: Case) -> list[str]:
    return [f"the zoo has {case.timesteps:,} steps"] if case.shortened else []


_writing = Lock()


def _trained(trial: Trial) -> Trained:
    """From what is kept, or else from training, which is then kept."""
    key = {**trial._asdict(), "of": _packages() if trial.side == "sb3" else _code()}
    known = _kept().get(_told(key))
    if known is not None:
        return known
    ended = in_process(trial, _TIME_LIMIT_S)
    with _writing:
        _KEPT.parent.mkdir(exist_ok=True)
        with _KEPT.open("a") as file:
            file.write(json.dumps({"trial": key, "trained": ended._asdict()}) + "\n")
    return ended


def _kept() -> dict[str, Trained]:
    lines = _KEPT.read_text().splitlines() if _KEPT.exists() else []
    rows = [json.loads(line) for line in lines]
    return {_told(row["trial"]): Trained(**row["trained"]) for row in rows}


def _told(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


@cache
def _packages() -> str:
    return ", ".join(map(named, _PACKAGES))


@cache
def _code() -> str:
    """The packages, and a digest of what of Stoker's code trains."""
    digest = hashlib.sha256()
    rooms = ("algos", "collect", "config", "envs", "kernels", "learn", "nn", "pools", "storage")
    for room in (*rooms, "train"):
        for file in sorted((_HOME / "stoker" / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return f"{_packages()}, {digest.hexdigest()[:16]}"


CASES: Cases = {f"{case.algo} {case.env}": partial(_parity, case) for case in ZOO}
