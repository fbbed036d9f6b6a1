"""What `stoker doctor` predicts, beside what `stoker train` with the same flags then measures.

Each in a process of its own, by turns. The ratio is predicted over measured: the middle one of the
pairs; 0.85 to 1.15 is what the doctor aims at.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from bench.record import Cases, Row
from bench.turns import by_turns, middle_ratio

_REPEATS = 3
_DECISIONS = ("pool", "batch", "collect")
_BUSY = ("--env", "bench.load:Busy", "--env-kwargs", "{seconds: 0.0008}")
_AWAITING = ("--env", "bench.io:Awaiting", "--env-kwargs", "{seconds: 0.02, long_s: 0}")

_ON_CPU: dict[str, tuple[str, ...]] = {
    "CartPole-v1, defaults": ("--env", "CartPole-v1", "--timesteps", "20k"),
    "CartPole-v1, preset fast in processes": (
        *("--env", "CartPole-v1", "--preset", "fast", "--pool", "process"),
        *("--n-epochs", "5", "--timesteps", "60k"),
    ),
    "Mission in processes": (
        *("--env", "stoker/Mission-v0", "--n-envs", "8", "--n-steps", "128"),
        *("--batch-size", "256", "--timesteps", "40k"),
    ),
    "Pendulum-v1, 4 environments": (
        *("--env", "Pendulum-v1", "--n-envs", "4", "--timesteps", "50k"),
    ),
    "a step of 0.8 ms in processes": (*_BUSY, "--n-envs", "8", "--timesteps", "30k"),
    "a step that waits 20 ms": (*_AWAITING, "--timesteps", "50k"),
    "tensor/CartPole-v1, 256 x 32": (
        *("--env", "tensor/CartPole-v1", "--n-envs", "256", "--n-steps", "32"),
        *("--batch-size", "2048", "--timesteps", "1M"),
    ),
    "Mission, preset heavy": (
        *("--env", "stoker/Mission-v0", "--preset", "heavy", "--timesteps", "50k"),
    ),
}
_ON_GPU: dict[str, tuple[str, ...]] = {
    "CartPole-v1, defaults": ("--env", "CartPole-v1", "--timesteps", "250k"),
    "CartPole-v1, 1024 environments": (
        *("--env", "CartPole-v1", "--n-envs", "1024", "--n-steps", "32", "--n-epochs", "4"),
        *("--batch-size", "4096", "--network-arch", "64,64", "--timesteps", "8M"),
    ),
    "Mission, preset heavy": (
        *("--env", "stoker/Mission-v0", "--preset", "heavy", "--timesteps", "300k"),
    ),
    "Pendulum-v1, preset fast": (
        *("--env", "Pendulum-v1", "--preset", "fast", "--timesteps", "500k"),
    ),
    "a step of 0.8 ms in processes": (*_BUSY, "--n-envs", "64", "--timesteps", "400k"),
    "a step that waits 20 ms": (*_AWAITING, "--timesteps", "400k"),
    "tensor/CartPole-v1, 2048 x 32": (
        *("--env", "tensor/CartPole-v1", "--n-envs", "2048", "--n-steps", "32"),
        *("--batch-size", "16384", "--n-epochs", "4", "--network-arch", "64,64"),
        *("--timesteps", "1000M"),
    ),
    "tensor/Pendulum-v1, preset gpu-sim": (
        *("--env", "tensor/Pendulum-v1", "--preset", "gpu-sim", "--timesteps", "20M"),
    ),
}


def _beside(case: str, flags: tuple[str, ...]) -> Iterator[Row]:
    told: list[dict[str, Any]] = []

    def predicted() -> float:
        told.append(_stoker("doctor", *flags))
        return float(told[-1]["predicted_sps"])

    def measured() -> float:
        with tempfile.TemporaryDirectory() as folder:
            given = ("--runs-dir", folder, "--eval-episodes", "0")
            return float(_stoker("train", *flags, *given)["sps"])

    found = by_turns({"predicted": predicted, "measured": measured}, _REPEATS)
    yield Row(
        "predict",
        case,
        round(statistics.median(found["predicted"]), 1),
        "steps/s",
        round(statistics.median(found["measured"]), 1),
        "measured",
        round(middle_ratio(found["predicted"], found["measured"]), 3),
        ceiling=round(statistics.median(one["ceiling"] for one in told), 1),
        details={
            "flags": " ".join(flags),
            **{name: [round(sps, 1) for sps in of] for name, of in found.items()},
            "limit": told[-1]["limit"],
            "took_s": [round(one["took_s"], 1) for one in told],
            "decided": [_decided(one) for one in told],
            "shares": {name: round(share, 3) for name, share in told[-1]["shares"].items()},
        },
    )


def _decided(told: dict[str, Any]) -> dict[str, str]:
    """How environments would be stepped, by what the doctor says."""
    return {one["what"]: one["chosen"] for one in told["decisions"] if one["what"] in _DECISIONS}


def _stoker(*words: str) -> dict[str, Any]:
    """What a command says as JSON."""
    command = [sys.executable, "-m", "stoker", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} left with {done.returncode}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


CASES: Cases = {
    case: partial(_beside, case, flags)
    for case, flags in (_ON_GPU if torch.cuda.is_available() else _ON_CPU).items()
}
