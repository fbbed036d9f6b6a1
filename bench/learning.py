"""Does it learn, with the defaults, whatever the seed? The evaluated reward of each seed.

No default was chosen by looking at these seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.record import Cases, Row

FIRST_SEED = 20


def _learning(env: str, steps: str, seeds: int, solved: float) -> Iterator[Row]:
    """`stoker train --env ENV --timesteps N --seed S --device cpu`, two at a time."""
    which = range(FIRST_SEED, FIRST_SEED + seeds)
    with ThreadPoolExecutor(2) as workers:
        ended = list(workers.map(lambda seed: _train(env, steps, seed), which))
    evaluated = [run["eval_reward"] for run in ended]
    reached = sum(reward >= solved for reward in evaluated)
    yield Row(
        "learning",
        f"{env}, {steps} steps",
        reached,
        f"seeds of {seeds} that reach {solved:g}",
        ceiling=seeds,
        details={
            "seeds": list(which),
            "eval_reward": [round(reward, 1) for reward in evaluated],
            "training_reward": [round(run["metrics"]["rollout/ep_rew_mean"], 1) for run in ended],
            "wall_s": [round(run["wall_s"], 1) for run in ended],
        },
    )


def _train(env: str, steps: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "--env", env, "--timesteps", steps, "--seed", str(seed), "--json"]
        ended = subprocess.run(
            [sys.executable, "-m", "stoker", *words, "--device", "cpu", "--runs-dir", folder],
            capture_output=True,
            text=True,
            check=True,
        )
    return dict(json.loads(ended.stdout))


CASES: Cases = {
    # environment, steps, seeds, the reward that counts as solved
    case[0]: partial(_learning, *case)
    for case in (
        ("CartPole-v1", "100k", 10, 475.0),
        ("Acrobot-v1", "100k", 3, -100.0),
        ("Pendulum-v1", "300k", 5, -250.0),
    )
}
