"""What overlapping brings: an iteration should cost the longer of collecting and learning.

First a synthetic environment whose cost is set so that collecting takes a quarter of learning's
time, up to four times it; then what users train on, against what its environments alone would
give on the same cores. Each case runs in step and overlapped in turn; the peer is "in step".
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.beside import WARM_UP, Speed, configured, follow, spent, train_beside
from bench.load import SETTLES_S, Alone, Busy
from bench.record import Cases, Row
from stoker.config.presets import PRESETS
from stoker.envs.registry import EnvFactory
from stoker.train.build import build
from stoker.train.progress import Progress

_RATIOS = (0.25, 1.0, 4.0)
_REPEATS, _TRAININGS = 3, 2


def _synthetic() -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0))
    n_envs, n_steps = 2 * cores, 1024  # about half a second, as `heavy` on Mission
    settings: dict[str, Any] = {
        "n_envs": n_envs,
        "n_steps": n_steps,
        "pool": "process",
        "preset": "fast",
    }
    settings |= {"batch_size": n_envs * 16, "n_epochs": 8, "target_kl": None}
    free = train(EnvFactory(Busy, {"seconds": 0.0}), iterations=5, collect="step", **settings)
    for ratio in _RATIOS:
        # Collecting cannot take less than with an environment that costs nothing, so where it is to
        # be the shorter, learning is made longer.
        epochs = max(8, round(8 * free.collect_s / free.learn_s / ratio))
        learn = free.learn_s * epochs / 8
        # Environments of a worker step one after the other, and the workers side by side.
        cost = max(0.0, ratio * learn - free.collect_s) / (n_steps * n_envs / cores)
        factory = EnvFactory(Busy, {"seconds": cost})
        case = f"collecting {ratio:g} times as long as learning"
        run = partial(train, factory, iterations=5, **settings | {"n_epochs": epochs})
        yield _row(case, _in_turn(lambda run=run, **mode: [run(**mode)], _REPEATS))


def _mission() -> Iterator[Row]:
    yield _real("stoker/Mission-v0", preset="heavy", pool="process")


def _cartpole() -> Iterator[Row]:
    wide = 256 * len(os.sched_getaffinity(0))
    yield _real(
        "CartPole-v1",
        n_envs=wide,
        n_steps=32,
        batch_size=wide * 4,
        n_epochs=4,
        network_arch=(64, 64),
        pool="process",
        target_kl=None,
    )


def _real(env: str, **settings: Any) -> Row:
    factory, size = EnvFactory(env).unchecked(), settings.get("n_envs", PRESETS["heavy"].n_envs)
    with Alone(factory, len(os.sched_getaffinity(0)), SETTLES_S) as alone:
        run = partial(train_beside, factory, alone, **settings)
        return _row(f"training {env}, {size} environments", _in_turn(run, _TRAININGS))


def _in_turn(run: Callable[..., list[Speed]], times: int) -> dict[str, list[Speed]]:
    speeds: dict[str, list[Speed]] = {"step": [], "overlap": []}
    for i in range(times):
        for mode in sorted(speeds, reverse=bool(i % 2)):
            speeds[mode] += run(collect=mode)
    return speeds


def _row(case: str, speeds: dict[str, list[Speed]]) -> Row:
    """Steps a second where there is a ceiling in steps a second, else the efficiency."""
    shares = {
        mode: [round(s.steps / s.wall_s / s.ceiling, 3) for s in of if s.ceiling]
        for mode, of in speeds.items()
    }
    ceilings = [s.ceiling for of in speeds.values() for s in of if s.ceiling]
    rate = {mode: [s.steps / s.wall_s for s in of] for mode, of in speeds.items()}
    efficiency = {mode: [s.efficiency for s in of] for mode, of in speeds.items()}
    shown, unit = (rate, "steps/s") if ceilings else (efficiency, "max(collect, learn) / wall")
    middle = {mode: statistics.median(of) for mode, of in rate.items()}
    return Row(
        "overlap",
        case,
        round(statistics.median(shown["overlap"]), 3),
        unit,
        round(statistics.median(shown["step"]), 3),
        "in step",
        round(middle["overlap"] / middle["step"], 3),
        ceiling=round(statistics.median(ceilings)) if ceilings else 1.0,
        details={
            "share_of_ceiling": shares,
            "ceilings": [round(x) for x in ceilings],
            "steps_per_s": {mode: [round(x) for x in of] for mode, of in rate.items()},
            "efficiency": {mode: [round(x, 3) for x in of] for mode, of in efficiency.items()},
            "collect_s": [round(s.collect_s, 4) for s in speeds["overlap"]],
            "learn_s": [round(s.learn_s, 4) for s in speeds["overlap"]],
            "collect_s_in_step": [round(s.collect_s, 4) for s in speeds["step"]],
            "learn_s_in_step": [round(s.learn_s, 4) for s in speeds["step"]],
        },
    )


def train(
    env: EnvFactory, iterations: int, collect: str, preset: str | None = None, **settings: Any
) -> Speed:
    """Train for `iterations`."""
    config = configured(env, iterations, preset, collect=collect, **settings)
    parts = build(config, env)
    began, ended = np.zeros(3), np.zeros(3)

    def watch(progress: Progress) -> None:
        if progress.iteration == WARM_UP:
            began[:] = spent(parts)
        if progress.iteration == WARM_UP + iterations:
            ended[:] = spent(parts)

    follow(parts, watch)
    wall, collected, learned = (ended - began) / iterations
    return Speed(wall, collected, learned, config.total_batch)


CASES: Cases = {"synthetic": _synthetic, "Mission": _mission, "CartPole": _cartpole}
