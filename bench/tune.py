"""What `stoker tune` finds, beside the best of all candidates, each measured; and in what time.

One call does both: the whole grid, then the search, then the best of each once more, by turns. The
ratio is the search's best over the grid's: 0.95 or more in a tenth of the time is what it aims at.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from bench.record import Cases, Row
from bench.turns import by_turns
from stoker.train.tuned import resolve_here
from stoker.tune.search import SECONDS, Search
from stoker.tune.tuning import Workbench, written

_REPEATS, _SECONDS = 3, 4.0

_MISSION = {"env": "stoker/Mission-v0", "pool": "process"}
_BUSY = {"env": "bench.load:Busy", "env_kwargs": {"seconds": 0.0002}, "pool": "process"}
_ON_CPU: dict[str, dict[str, Any]] = {
    "Mission, 512 rows": {**_MISSION, "n_envs": 8, "n_steps": 64, "batch_size": 128},
    "a step of 0.2 ms, 512 rows": {**_BUSY, "n_envs": 4, "n_steps": 128, "batch_size": 128},
}
_ON_GPU: dict[str, dict[str, Any]] = {
    "Mission, 4096 rows": {**_MISSION, "n_envs": 32, "n_steps": 128, "batch_size": 1024},
    "a step of 0.2 ms, 4096 rows": {**_BUSY, "n_envs": 64, "n_steps": 64, "batch_size": 1024},
}


def _search(case: str, settings: dict[str, Any]) -> Iterator[Row]:
    config = resolve_here({**settings, "timesteps": 1_000_000})
    began = time.perf_counter()
    grid = Workbench(config, allow_learning=True)
    everything = [grid.sps(number, SECONDS[1]) for number in range(len(grid.candidates))]
    grid_s, began = time.perf_counter() - began, time.perf_counter()
    bench = Workbench(config, allow_learning=True)
    search = Search(bench.predictions, bench.kinds())
    search.run(bench.sps)
    tune_s = time.perf_counter() - began
    found = search.ranked()[0].number
    best = max(range(len(everything)), key=lambda number: everything[number])
    again = by_turns(
        {"tune": partial(bench.sps, found, _SECONDS), "grid": partial(grid.sps, best, _SECONDS)},
        _REPEATS,
    )
    middle = {name: statistics.median(of) for name, of in again.items()}
    yield Row(
        "tune",
        case,
        round(middle["tune"], 1),
        "steps/s",
        round(middle["grid"], 1),
        "best of the grid",
        round(middle["tune"] / middle["grid"], 3),
        ceiling=round(middle["grid"], 1),
        details={
            "candidates": len(everything),
            "measured": len(search.measured),
            "grid_s": round(grid_s, 1),
            "tune_s": round(tune_s, 1),
            "share_of_time": round(tune_s / grid_s, 3),
            "tune": written(bench.candidates[found]),
            "grid": written(grid.candidates[best]),
            "base": round(everything[0], 1),
            "again": {name: [round(sps, 1) for sps in of] for name, of in again.items()},
        },
    )


CASES: Cases = {
    case: partial(_search, case, settings)
    for case, settings in (_ON_GPU if torch.cuda.is_available() else _ON_CPU).items()
}
