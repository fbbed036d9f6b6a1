"""What watching costs: processor time of the sampling thread, beside the half percent it may take.

Where there is a GPU all of its figures are read; where there is none, the host's alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.record import Cases, Row
from stoker.monitor.records import figures_of
from stoker.monitor.sampler import Sampler

_SECONDS = 30.0
_CEILING = 0.5  # percent of a core


def _cost(case: str, host: Path | None) -> Iterator[Row]:
    with Sampler(host=host, pid=os.getpid()) as sampler:
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
    yield Row("monitor", case, round(cost, 3), "% of a core", ceiling=_CEILING, details=details)


CASES: Cases = {
    "a run's GPU": partial(_cost, "a run's GPU", None),
    "all GPUs and the host": partial(_cost, "all GPUs and the host", Path()),
}
