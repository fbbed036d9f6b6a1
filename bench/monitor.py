"""What watching costs: processor time of the sampling thread, beside the half percent it may take.

Where there is a GPU all of its figures are read; where there is none, the host's alone. A run's
timeline is of two threads that change their phase every 20 ms.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.record import Cases, Row
from stoker.monitor.phases import PhaseClock
from stoker.monitor.records import figures_of
from stoker.monitor.sampler import Sampler
from stoker.monitor.tape import Tape
from stoker.runs.folder import RunFolder
from stoker.runs.timeline import TimelineFile

_SECONDS = 30.0
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


CASES: Cases = {
    "a run's GPU": partial(_alone, "a run's GPU", None),
    "a run's GPU and its timeline": partial(_with_timeline, "a run's GPU and its timeline"),
    "all GPUs and the host": partial(_alone, "all GPUs and the host", Path()),
}
