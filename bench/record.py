"""A measurement on paper: what was measured, on which machine, with which versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """One case. `ratio` is ours over the peer's, larger is better; None is unknown."""

    bench: str
    case: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    ceiling: float | None = None
    details: dict[str, Any] | None = None


def surroundings() -> dict[str, Any]:
    """Hardware, versions and commit."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "numpy", "gymnasium")},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def publish(name: str, rows: Iterable[Row], save: bool) -> None:
    """Print each row as it comes, and keep all so far with their surroundings."""
    where, kept = surroundings(), []
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}-{'gpu' if where['gpu'] else 'cpu'}.json"
    for row in rows:
        print(json.dumps(row._asdict(), allow_nan=False), flush=True)
        kept.append(row._asdict())
        if save:
            content = json.dumps({**where, "rows": kept}, indent=1, allow_nan=False)
            file.write_text(content + "\n")


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
