"""What a step through the process pool costs besides the environments' own time.

The environment does nothing, so that the whole of a step is hand-over. The peer is Gymnasium's
`AsyncVectorEnv`, with shared memory as it comes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from bench.record import Cases, Row
from stoker.pools.choose import probe
from stoker.pools.process import ProcessPool

_STEPS = 1000
_REPEATS = 5


class Nothing(gymnasium.Env[Any, Any]):
    """Costs nothing and never ends."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.obs = np.zeros(4, np.float32)
        return self.obs, {}

    def step(self, action: Any) -> Any:
        return self.obs, 0.0, False, False, {}


def _handover(workers: int) -> Iterator[Row]:
    """Microseconds a step."""
    spec = probe("Nothing", Nothing()).spec
    pool = ProcessPool(Nothing, spec, workers, workers)
    peer = gymnasium.vector.AsyncVectorEnv([Nothing] * workers)
    pool.reset(0)
    peer.reset(seed=0)
    policy_actions, actions = np.zeros((workers, 1), np.int64), np.zeros(workers, np.int64)
    ours, theirs = [], []
    for _ in range(_REPEATS):  # in turn, so that a change of the machine's mood hits both
        ours.append(_microseconds(partial(pool.step, policy_actions)))
        theirs.append(_microseconds(partial(peer.step, actions)))
    pool.close()
    peer.close()
    mine, other = statistics.median(ours), statistics.median(theirs)
    yield Row(
        "handover",
        f"{workers} workers",
        round(mine, 1),
        "us a step, smaller is better",
        round(other, 1),
        f"gymnasium AsyncVectorEnv {gymnasium.__version__}",
        round(other / mine, 2),
        details={"ours": [round(x, 1) for x in ours], "peer": [round(x, 1) for x in theirs]},
    )


def _microseconds(step: Callable[[], Any]) -> float:
    for _ in range(50):
        step()
    began = time.perf_counter()
    for _ in range(_STEPS):
        step()
    return (time.perf_counter() - began) / _STEPS * 1e6


CASES: Cases = {f"{workers} workers": partial(_handover, workers) for workers in (1, 2, 4)}
