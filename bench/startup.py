"""From the command to a solved CartPole: how long a process takes, with empty caches and full ones.

`stoker train` leaves with 0 when the evaluation, on environments of its own, reaches what was
required. Beside it stands what nobody who uses torch can do without: its import, and one kernel.
Python's bytecode is always there, as where packages were installed the usual way: a machine that
has none compiles all of torch from its sources at every import.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from bench.record import Cases, Row

_REPEATS = 3
_TIME_LIMIT_S = 300.0
_TRAIN = (
    "train --env tensor/CartPole-v1 --timesteps 400k --n-envs 512 --n-steps 16 --batch-size 4096 "
    "--n-epochs 4 --network-arch 64,64 --lr 3e-3 --target-kl None --checkpoint-every 400k "
    "--require-reward 475 --json"
)
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "others",
}
_IMPORT = "import torch"
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_KERNEL = f"import torch; torch.ones(1, device={_DEVICE!r}).add_(1).item()"
_IMPORTED_BY_TRAIN = "import stoker.cli.main, stoker.cli.train, stoker.train.start"


class Timed(NamedTuple):
    """A process that has ended."""

    seconds: float
    code: int
    out: str
    err: str


def _solved() -> Iterator[Row]:
    found: dict[str, list[Timed]] = {name: [] for name in ("cold", "warm", "import", "kernel")}
    with tempfile.TemporaryDirectory() as bytecode:
        for repeat in range(-1, _REPEATS):  # the first writes the bytecode, and does not count
            with tempfile.TemporaryDirectory() as folder:
                for name, arguments in _commands(repeat, folder):
                    timed = _timed(arguments, Path(folder, "caches"), bytecode)
                    if repeat >= 0:
                        found[name].append(timed)
    floor = _seconds(found["kernel"])
    for name in ("cold", "warm"):
        took = _seconds(found[name])
        yield Row(
            "startup",
            f"CartPole solved, caches {name}",
            took,
            "s from the command to its end, smaller is better",
            floor,
            "import torch and one kernel",
            round(floor / took, 3) if took and floor else None,
            details={
                "seconds": [round(one.seconds, 2) for one in found[name]],
                "solved": [one.code == 0 for one in found[name]],
                "training_s": [_training_s(one) for one in found[name]],
                "import_torch_s": _seconds(found["import"]),
                "failure": next((_last(one.err) for one in found[name] if one.code), None),
            },
        )


def _commands(repeat: int, folder: str) -> Iterator[tuple[str, list[str]]]:
    """What to run, in this order."""
    for name in ("cold", "warm"):
        words = ["-m", "stoker", *_TRAIN.split(), "--seed", str(max(repeat, 0))]
        yield name, [*words, "--runs-dir", folder, "--run-name", name]
    yield "import", ["-c", _IMPORT]
    yield "kernel", ["-c", _KERNEL]


def _seconds(timed: list[Timed]) -> float | None:
    """The middle one of those that went well; None where not all did: unknown."""
    if any(one.code for one in timed):
        return None
    return round(statistics.median(one.seconds for one in timed), 2)


def _training_s(timed: Timed) -> float | None:
    """What the run itself counts: from the first iteration to the end of the evaluation."""
    return round(json.loads(timed.out)["wall_s"], 2) if timed.out.startswith("{") else None


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _timed(arguments: list[str], caches: Path, bytecode: str) -> Timed:
    """Run Python with its compilers' caches in that folder, and its bytecode in the other."""
    environment = os.environ | {name: str(caches / where) for name, where in _CACHES.items()}
    environment |= {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
    )
    return Timed(time.monotonic() - began, ended.returncode, ended.stdout, ended.stderr)


def _imports() -> Iterator[Row]:
    """What `stoker train` imports once torch is there, by each module's own time."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-X", "importtime", "-c", f"{_IMPORT}; {_IMPORTED_BY_TRAIN}"]
        timed = [_timed(words, Path(folder), folder) for _ in range(1 + _REPEATS)]
    found = [_past_torch(one.err) for one in timed[1:]]
    names = dict.fromkeys(name for one in found for name in one)
    modules = {n: statistics.median(one.get(n, 0.0) for one in found) for n in names}
    packages: defaultdict[str, float] = defaultdict(float)
    for name, seconds in modules.items():
        packages[name.partition(".")[0]] += seconds
    yield Row(
        "startup",
        "imports past torch",
        round(sum(modules.values()), 3),
        "s, smaller is better",
        details={"packages": _dearest(packages), "modules": _dearest(modules)},
    )


def _past_torch(told: str) -> dict[str, float]:
    """Seconds of each module that was imported after torch itself."""
    found = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", told)
    order = [name for _, name in found]
    return {name: int(own) / 1e6 for own, name in found[order.index("torch") + 1 :]}


def _dearest(seconds: Mapping[str, float]) -> dict[str, float]:
    names = sorted(seconds, key=lambda name: -seconds[name])[:10]
    return {name: round(seconds[name], 4) for name in names}


CASES: Cases = {"solved": _solved, "imports": _imports}
