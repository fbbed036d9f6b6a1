"""A measurement on paper: what was measured, on which machine, with which versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """One case. `ratio` is ours over the peer's, larger is better; None is unknown."""

    bench: str
    case: str
    ours: float | None
    unit: str
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    ceiling: float | None = None
    details: dict[str, Any] | None = None


Measure = Callable[[], Iterable[Row]]
Cases = Mapping[str, Measure]
"""What a benchmark can measure, by name."""


def surroundings() -> dict[str, Any]:
    """Hardware and versions."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "numpy", "gymnasium")},
    }


def publish(name: str, cases: Cases, only: str, save: bool) -> None:
    """Measure the cases whose names have `only` in them, and print each row as it comes.

    Rows that are kept say of which commit they are; those of other cases stay, where the machine
    and its versions are the same.
    """
    where = surroundings()
    file = RESULTS / f"{name}-{'gpu' if where['gpu'] else 'cpu'}.json"
    told = {"commit": _commit(), "date": time.strftime("%Y-%m-%d")}
    for case, measure in cases.items():
        for row in measure() if only in case else ():
            print(json.dumps(row._asdict(), allow_nan=False), flush=True)
            if save:
                _keep(file, where, row._asdict() | told)


def _keep(file: Path, where: dict[str, Any], row: dict[str, Any]) -> None:
    """Put a row in a file of results, in place of an earlier one of its case and peer."""
    rows: list[dict[str, Any]] = []
    if file.exists():
        found = json.loads(file.read_text())
        if all(found[key] == value for key, value in where.items()):
            rows = found["rows"]
    which = ("case", "peer_name")
    rows = [old for old in rows if any(old[key] != row[key] for key in which)] + [row]
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**where, "rows": rows}, indent=1, allow_nan=False) + "\n")


def named(package: str) -> str:
    """With its version, if it is installed."""
    return f"{package} {_version(package) or ''}".strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit measured; STOKER_COMMIT says it where the code was copied without its history."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    except OSError:
        return os.environ.get("STOKER_COMMIT")
    known = found.stdout.strip() if found.returncode == 0 else None
    return os.environ.get("STOKER_COMMIT") or known
