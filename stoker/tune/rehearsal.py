"""A run's own parts at work for a few seconds, in a folder that is thrown away.

The real pool, policy and learner collect and learn; what each phase takes is what the model of
`monitor.verdict` makes predictions of.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch

from stoker.config.schema import Config
from stoker.monitor.verdict import Job
from stoker.pools.on_device import DevicePool
from stoker.train import loop
from stoker.train.build import build
from stoker.train.judging import job_on
from stoker.train.parts import Parts
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.start import open_folder

_ENDLESS = 2**40  # steps: schedules stand still, and nothing is saved unasked
_WARM_UP = 3  # iterations: libraries set themselves up, graphs are captured
_LEAST_S, _LEAST_TIMES = 4.0, 3
_ALONE = 10  # rollouts that are timed apart from learning
_KNOWN = 0.01  # of the mean, when it need not be known better


class Rehearsed(NamedTuple):
    """Iterations that were made one way, from each log to the next: seconds, and how many."""

    job: Job
    walls: Sequence[float]
    times: Sequence[int]


class Rehearsal:
    """Use as a context: builds the parts, and closes them."""

    def __init__(self, config: Config) -> None:
        self._given = config
        self._stack = ExitStack()

    def __enter__(self) -> Rehearsal:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stoker-rehearsal-"))
            self.parts = build(_endless(self._given, folder))
            stack.callback(self.parts.close)
            self.trial, self.parts.trial = self.parts.trial, None
            if self.trial is not None:  # which may be building kernels to the end
                stack.callback(self.trial.close)
            self._session = Session(self.parts, open_folder(self.parts))
            stack.callback(self._session.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Safe to call twice."""
        self._stack.close()

    @property
    def resolved(self) -> Config:
        """The config as given, with the pool and the environments that were chosen for it."""
        return dataclasses.replace(self.parts.config, run=self._given.run)

    @property
    def on_device(self) -> bool:
        """Whether environments step where the network is."""
        return isinstance(self.parts.pool, DevicePool)

    def warm_up(self, times: int = _WARM_UP) -> float:
        """The first iterations, to so many logs; what they take beyond as many of the last."""
        _, walls, made = self.measure(0.0, times)
        return max(0.0, sum(walls) - sum(made) * walls[-1] / made[-1])

    def overlap(self) -> None:
        """Collect while learning from now on, the change-over made."""
        self.parts.collector.ahead = True
        self.measure(0.0, 1)

    def measure(self, most_s: float, times: int = 0) -> Rehearsed:
        """Iterations until enough is known, or for that long; or to so many logs."""
        done = partial(_enough, most_s=most_s) if not times else lambda walls: len(walls) >= times
        found = self._until(done)
        if self.on_device and self.parts.device.type == "cuda":
            found = found._replace(job=_told_apart(self.parts, found))
        return found

    def until_taken_over(self, most_s: float) -> Rehearsed:
        """Iterations while kernels are built behind them, until these have taken over."""
        parts = self.parts
        parts.trial = self.trial
        found = self._until(lambda walls: parts.fused is not None or sum(walls) > most_s)
        parts.trial = None
        return found

    def _until(self, done: Callable[[Sequence[float]], bool]) -> Rehearsed:
        parts, session = self.parts, self._session
        walls, times = list[float](), list[int]()
        worked, made = parts.pool.worked() or 0.0, session.steps_made
        before = session.counters.iteration
        session.start_clocks()
        last = time.perf_counter()

        def watch(progress: Progress) -> bool:
            nonlocal last
            walls.append(time.perf_counter() - last)
            last += walls[-1]
            times.append(progress.iteration - before - sum(times))
            return not done(walls)

        loop.run(session, watch, StopRequest(None))
        return Rehearsed(job_on(parts, session.steps_made - made, worked), walls, times)

    def save_s(self) -> float:
        """What a checkpoint takes."""
        began = time.perf_counter()
        self._session.save()
        return time.perf_counter() - began


def _endless(config: Config, folder: str) -> Config:
    run = dataclasses.replace(
        config.run,
        timesteps=_ENDLESS,
        checkpoint_every=_ENDLESS,
        eval_every=0,
        log_every=min(1, config.run.log_every),  # 0: as often as the run will
        run_name="rehearsal",
        runs_dir=folder,
    )
    return dataclasses.replace(config, run=run)


def _enough(walls: Sequence[float], most_s: float) -> bool:
    spent, times = sum(walls), len(walls)
    if spent >= most_s:
        return True
    if times < _LEAST_TIMES or spent < _LEAST_S:
        return False
    wanders = statistics.stdev(walls) / times**0.5
    return wanders < _KNOWN * statistics.fmean(walls)


def _told_apart(parts: Parts, found: Rehearsed) -> Job:
    """Where the host only launches: rollouts timed alone, the rest of the time is learning's."""
    job, stream = found.job, torch.cuda.current_stream()
    made = sum(found.times)
    times = min(_ALONE, made)
    stream.synchronize()  # sync: to time what follows
    began = time.perf_counter()
    for _ in range(times):
        parts.collector.collect()
    stream.synchronize()  # sync: likewise
    logged = job.phases.get("log", 0.0)
    collected = made * (time.perf_counter() - began) / times
    collected = min(collected, job.wall_s - logged)
    phases = {"env": collected, "update": job.wall_s - logged - collected, "log": logged}
    return job._replace(phases=phases)
