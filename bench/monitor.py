"""What watching costs: processor time of the sampling thread, beside the half percent it may take;
and what a training loses by it, watched and unwatched by turns. And whether it sees what the
driver's own tool sees.

Where there is a GPU all of its figures are read; where there is none, the host's alone. A run's
timeline is of two threads that change their phase every 20 ms.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.record import Cases, Row
from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.monitor.phases import PhaseClock
from stoker.monitor.records import figures_of
from stoker.monitor.sampler import Sampler
from stoker.monitor.tape import Tape
from stoker.runs.folder import RunFolder
from stoker.runs.timeline import TimelineFile
from stoker.train import loop
from stoker.train.build import build
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest

_SECONDS = 30.0
_BLOCK_S, _BLOCKS = 1.0, 48
_MINUTE = 60  # seconds beside `nvidia-smi dmon`
_CEILING = 0.5  # percent of a core
_PHASE_S = 0.02
_THREADS = {"learner": ("wait", "update", "log"), "collector": ("env", "inference", "store")}


def _alone(case: str, host: Path | None) -> Iterator[Row]:
    yield _cost(case, Sampler(host=host, pid=os.getpid()))


def _with_timeline(case: str) -> Iterator[Row]:
    """As a run does it, with the cores alone of the host."""
    clocks = {name: PhaseClock() for name in _THREADS}
    with tempfile.TemporaryDirectory() as folder, _at_work(clocks):
        file = TimelineFile(RunFolder.create(Path(folder), "run"))
        sampler = Sampler(cores=True, pid=os.getpid())
        sampler.tape = Tape(clocks, file.add)
        yield _cost(case, sampler)
        sampler.tape.close()
        file.close()


@contextmanager
def _at_work(clocks: dict[str, PhaseClock]) -> Iterator[None]:
    over = threading.Event()

    def work(clock: PhaseClock, phases: Sequence[str]) -> None:
        while not over.is_set():
            for phase in phases:
                with clock.phase(phase):
                    over.wait(_PHASE_S)

    threads = [threading.Thread(target=work, args=(clocks[n], _THREADS[n])) for n in clocks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _cost(case: str, sampler: Sampler) -> Row:
    with sampler:
        sampler.wait_until_open(_SECONDS)
        began = time.monotonic()
        time.sleep(_SECONDS)
        ended = time.monotonic()
        cost = 100 * sampler.cost
    details = {
        "gpus": [
            {
                "name": gpu.name,
                "samples_per_s": round(len(gpu.series) / (ended - began), 1),
                "means": dict(figures_of(means)) if means is not None else None,
            }
            for gpu in sampler.gpus
            for means in (gpu.series.between(began, ended),)
        ],
        "trouble": sampler.trouble,
    }
    return Row("monitor", case, round(cost, 3), "% of a core", ceiling=_CEILING, details=details)


_TRAINED: dict[str, Any] = {"n_steps": 32, "n_epochs": 4, "network_arch": (64, 64)}
_HAS_GPU = torch.cuda.is_available()
_TENSORS = {"env": "tensor/CartPole-v1", "n_envs": 2048 if _HAS_GPU else 256, **_TRAINED}
_IN_PROCESSES = {"env": "CartPole-v1", "n_envs": 1024 if _HAS_GPU else 64, **_TRAINED}
_IN_PROCESSES |= {"pool": "process", "collect": "overlap"}


def _train(settings: dict[str, Any], told: Callable[[Progress], bool]) -> None:
    """Train, unwatched, until `told` of an iteration says False."""
    rows = settings["n_envs"] * settings["n_steps"]
    given = {**settings, "batch_size": rows // 4, "target_kl": None, "eval_episodes": 0}
    given |= {"timesteps": 10**12, "monitor": False, "kernels": "fused"}  # from the beginning
    parts = build(resolve(given, on_gpu=_HAS_GPU), EnvFactory(settings["env"]))
    try:
        loop.run(Session(parts, None), told, StopRequest(None))
    finally:
        parts.close()


class _Turns:
    """Steps a second of a training in blocks of time that are watched, or not, by turns."""

    def __init__(self) -> None:
        self.rates: dict[bool, list[float]] = {True: [], False: []}
        self._watched = False
        self._sampler: Sampler | None = None
        self._began: tuple[float, int] | None = None
        self._ready = time.monotonic() + 3 * _BLOCK_S  # kernels are built, caches are filled

    def __call__(self, progress: Progress) -> bool:
        now = time.monotonic()
        if now < self._ready:
            return True
        if self._began is None:
            self._began = now, progress.env_steps
            return True
        since, steps = self._began
        if now - since < _BLOCK_S:
            return True
        self.rates[self._watched].append((progress.env_steps - steps) / (now - since))
        self._turn()
        return sum(map(len, self.rates.values())) < _BLOCKS

    def _turn(self) -> None:
        """The other way from now on, in pairs whose order changes: off on, on off."""
        blocks = sum(map(len, self.rates.values()))
        self._watched = blocks % 4 in (1, 2)
        self._began = None
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        if self._watched:
            self._sampler = Sampler(gpus=_HAS_GPU, cores=True, pid=os.getpid())
            self._sampler.start()
            self._sampler.wait_until_open(_SECONDS)


def _throughput(case: str, settings: dict[str, Any]) -> Iterator[Row]:
    turns = _Turns()
    _train(settings, turns)
    watched, alone = turns.rates[True], turns.rates[False]
    ratios = [a / b for a, b in zip(watched, alone, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    yield Row(
        "monitor",
        case,
        round(statistics.median(watched)),
        "steps/s",
        round(statistics.median(alone)),
        "not watched",
        round(statistics.median(ratios), 4),
        details={
            "mean_ratio": round(statistics.fmean(ratios), 4),
            "ratio_standard_error": round(error, 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
        },
    )


def _beside_the_driver(case: str) -> Iterator[Row]:
    """A training that keeps the GPU busy about half of the time, for a minute."""
    command = shutil.which("nvidia-smi")
    if command is None or not _HAS_GPU:
        return
    began = 0.0
    ended = time.monotonic() + 3 * _BLOCK_S
    tool: subprocess.Popen[str] | None = None
    sampler = Sampler(pid=os.getpid())

    def told(progress: Progress) -> bool:
        nonlocal tool, began, ended
        now = time.monotonic()
        if tool is None and now >= ended:
            words = [command, "dmon", "-s", "u", "-d", "1", "-c", str(_MINUTE)]
            tool = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            began, ended = now, now + _MINUTE
        return tool is None or now < ended

    with sampler:
        sampler.wait_until_open(_SECONDS)
        _train({**_IN_PROCESSES, "collect": "step"}, told)
    assert tool is not None
    out, _ = tool.communicate(timeout=_SECONDS)
    theirs = [float(line.split()[1]) for line in out.splitlines() if not line.startswith("#")]
    means = sampler.gpus[0].series.between(began, ended)
    busy = 100 * means.busy if means is not None and means.busy is not None else None
    told_by_tool = statistics.fmean(theirs)
    yield Row(
        "monitor",
        case,
        None if busy is None else round(busy, 2),
        "% busy",
        round(told_by_tool, 2),
        "nvidia-smi dmon",
        None if busy is None else round(busy / told_by_tool, 4),
        details={"points_apart": None if busy is None else round(busy - told_by_tool, 2)},
    )


CASES: Cases = {
    "a run's GPU": partial(_alone, "a run's GPU", None),
    "a run's GPU and its timeline": partial(_with_timeline, "a run's GPU and its timeline"),
    "all GPUs and the host": partial(_alone, "all GPUs and the host", Path()),
    "training on tensors": partial(_throughput, "training on tensors", _TENSORS),
    "training in processes": partial(_throughput, "training in processes", _IN_PROCESSES),
    "busy for a minute": partial(_beside_the_driver, "busy for a minute"),
}
