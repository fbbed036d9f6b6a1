"""What overlapping brings: an iteration should cost the longer of collecting and learning.

First a synthetic environment whose cost is set so that collecting takes a quarter of learning's
time, up to four times it; then what users train on, against what its environments alone would
give on the same cores. Each case runs in step and overlapped in turn; the peer is "in step".
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.load import Alone, Busy, Episode
from bench.record import Cases, Row
from stoker.config import resolve
from stoker.config.presets import PRESETS
from stoker.envs.registry import EnvFactory
from stoker.pools.inline import InlinePool
from stoker.pools.slot import episode_seed
from stoker.train import loop
from stoker.train.build import build
from stoker.train.overlap import COLLECTING
from stoker.train.parts import Parts
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest

_RATIOS = (0.25, 1.0, 4.0)
_WARM_UP, _REPEATS = 3, 3
_SETTLES_S = 4.0
_LONGEST = 500  # steps of an episode that is made again


class Speed(NamedTuple):
    """How a training went once it was warm, by the iteration."""

    wall_s: float
    collect_s: float
    learn_s: float
    steps: int
    alone: tuple[float, ...] = ()
    """Steps/s of the environments alone: right before, of random steps; and right after, of such as
    the trained policy makes."""

    @property
    def ceiling(self) -> float | None:
        return statistics.mean(self.alone) if self.alone else None

    @property
    def efficiency(self) -> float:
        """max(collect, learn) / wall: 1 is perfect."""
        return max(self.collect_s, self.learn_s) / self.wall_s


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
        run = partial(train, factory, iterations=5, **settings | {"n_epochs": epochs})
        yield _row(f"collecting {ratio:g} times as long as learning", _in_turn(run))


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
    factory, size = EnvFactory(env), settings.get("n_envs", PRESETS["heavy"].n_envs)
    with Alone(factory, len(os.sched_getaffinity(0)), _SETTLES_S) as alone:
        run = partial(train, factory, iterations=24, alone=alone, **settings)
        return _row(f"training {env}, {size} environments", _in_turn(run))


def _in_turn(run: Any) -> dict[str, list[Speed]]:
    speeds: dict[str, list[Speed]] = {"step": [], "overlap": []}
    for i in range(_REPEATS):
        for mode in sorted(speeds, reverse=bool(i % 2)):
            speeds[mode].append(run(collect=mode))
    return speeds


def _row(case: str, speeds: dict[str, list[Speed]]) -> Row:
    """Steps a second where there is a ceiling in steps a second, else the efficiency."""
    shares = {
        mode: [round(s.steps / s.wall_s / s.ceiling, 3) for s in of if s.ceiling]
        for mode, of in speeds.items()
    }
    ceilings = [s.ceiling for of in speeds.values() for s in of if s.ceiling]
    alone = {mode: [list(map(round, s.alone)) for s in of] for mode, of in speeds.items()}
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
            "alone": alone if ceilings else {},
            "steps_per_s": {mode: [round(x) for x in of] for mode, of in rate.items()},
            "efficiency": {mode: [round(x, 3) for x in of] for mode, of in efficiency.items()},
            "collect_s": [round(s.collect_s, 4) for s in speeds["overlap"]],
            "learn_s": [round(s.learn_s, 4) for s in speeds["overlap"]],
            "collect_s_in_step": [round(s.collect_s, 4) for s in speeds["step"]],
            "learn_s_in_step": [round(s.learn_s, 4) for s in speeds["step"]],
        },
    )


def train(
    env: EnvFactory,
    iterations: int,
    collect: str,
    preset: str | None = None,
    alone: Alone | None = None,
    **settings: Any,
) -> Speed:
    """Train for `iterations` after the first ones, which warm up, and before the last.

    That one is learned from while nothing is collected any more, as no other has to be.
    """
    has_gpu = torch.cuda.is_available()
    given = {**settings, "collect": collect, "timesteps": 1, "eval_episodes": 0}
    config = resolve({"env": env.name, **given}, preset=preset, on_gpu=has_gpu)
    total = (_WARM_UP + iterations + 1) * config.total_batch
    config = resolve({"env": env.name, **given, "timesteps": total}, preset=preset, on_gpu=has_gpu)
    found = [alone()] if alone else []
    parts = build(config, env)
    session = Session(parts, None)
    spent: list[float] = []

    def watch(progress: Progress) -> None:
        if progress.iteration == _WARM_UP:
            session.start_clocks()
        if progress.iteration == _WARM_UP + iterations:
            collected = sum(parts.collect_clock.total[phase] for phase in COLLECTING)
            spent[:] = parts.clock.elapsed(), collected, parts.clock.total["update"]

    try:
        loop.run(session, watch, StopRequest(None))
        found += [alone(episodes=_played(parts, env))] if alone else []
    finally:
        parts.close()
    wall, collected, learned = (seconds / iterations for seconds in spent)
    return Speed(wall, collected, learned, config.total_batch, tuple(found))


@torch.no_grad()
def _played(parts: Parts, env: EnvFactory) -> list[Episode]:
    """Some whole episodes under the policy as it is now."""
    policy, count, seed = parts.policy, 2 * len(os.sched_getaffinity(0)), 0
    pool = InlinePool(env, parts.pool.spec, count)
    taken: list[list[np.ndarray]] = [[] for _ in range(count)]
    playing, batch = np.arange(count), pool.reset(seed)
    for _ in range(_LONGEST):
        seen = {n: torch.from_numpy(v).to(parts.device) for n, v in batch.obs.items()}
        decided = policy.act(seen, None, policy.draw_noise(len(playing)))
        action = decided.action.cpu().numpy()
        for env_id, done in zip(playing.tolist(), pool.codec.encode(action), strict=True):
            taken[env_id].append(done)
        pool.send(action, playing)
        batch = pool.recv(len(playing))
        on = ~(batch.terminated | batch.truncated)
        playing, batch = playing[on], batch.rows(np.flatnonzero(on))
        if not playing.size:
            break
    pool.close()
    return [Episode(episode_seed(seed, i, 0), np.stack(of)) for i, of in enumerate(taken)]


CASES: Cases = {"synthetic": _synthetic, "Mission": _mission, "CartPole": _cartpole}
