"""What other programs read of runs, dead or alive. Imports no torch, changes no file."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stoker.errors import StokerError
from stoker.runs.folder import METRICS_NAME, STATUS_NAME, RunFolder, is_run
from stoker.runs.lock import is_locked
from stoker.runs.process import is_alive
from stoker.runs.strict_json import loads
from stoker.runs.timeline import read_timeline as read_timeline
from stoker.runs.timeline import squeezed as squeezed
from stoker.types import Stretch as Stretch

# A trainer rewrites its status every few seconds; one this old, far away, has been preempted.
_TRUST_S = 300.0


class RunSummary(NamedTuple):
    """One run at a glance; what is unknown is None."""

    name: str
    path: Path
    state: str
    """`running` while the run is locked, else as the trainer wrote it, or `died` (it says running,
    its process is gone), or `unknown`."""
    env: str | None
    env_steps: int | None
    sps: float | None
    wall_s: float | None
    reward: float | None
    """rollout/ep_rew_mean"""
    eval_reward: float | None
    """eval/mean_reward"""
    updated: float | None
    """Unix time of the last status."""


class Run(NamedTuple):
    """All that a run tells of itself; what is missing or damaged is empty."""

    summary: RunSummary
    status: dict[str, Any]
    """The last that the trainer wrote."""
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    timeline: list[Stretch]


def list_runs(runs_dir: Path) -> list[RunSummary]:
    """Every run in `runs_dir` by name; what is no run is passed over."""
    try:
        return [summarise(path) for path in sorted(runs_dir.iterdir()) if is_run(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def summarise(path: Path) -> RunSummary:
    """The run at `path` at a glance. A damaged file makes its figures unknown, never an error."""
    folder = RunFolder(path)
    status = _readable(folder.read_status)
    env_steps = number_of(status, "env_steps")
    updated = _modified(path / STATUS_NAME)
    return RunSummary(
        name=folder.name,
        path=path,
        state=_state(path, status, updated),
        env=text_of(_readable(folder.read_config), "env"),
        env_steps=None if env_steps is None else int(env_steps),
        sps=number_of(status, "sps"),
        wall_s=number_of(status, "wall_s"),
        reward=number_of(status, "rollout/ep_rew_mean"),
        eval_reward=number_of(status, "eval/mean_reward"),
        updated=updated,
    )


def read_run(path: Path) -> Run:
    """The run at `path`, dead or alive. What a damaged file held is unknown, never an error."""
    folder = RunFolder(path)
    return Run(
        summarise(path),
        _readable(folder.read_status),
        _readable(folder.read_config),
        read_metrics(path),
        read_timeline(path),
    )


def number_of(entry: Mapping[str, Any], name: str) -> float | None:
    """A number of a status or of a line of metrics; None is unknown."""
    value = entry.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def text_of(entry: Mapping[str, Any], name: str) -> str | None:
    """A text of a status or of settings; None is unknown."""
    value = entry.get(name)
    return value if isinstance(value, str) else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of the run at `path`, in order.

    A line that is torn or damaged is passed over: the run may be writing it now. No file: [].
    """
    try:
        lines = (path / METRICS_NAME).read_bytes().splitlines()
    except OSError:
        return []
    return [entry for line in lines if (entry := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One line of metrics.jsonl, or None if it is not whole."""
    try:
        entry = loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or number_of(entry, "env_steps") is None:
        return None
    return entry


def _readable(read: Any) -> dict[str, Any]:
    try:
        content: dict[str, Any] = read()
    except StokerError:
        return {}
    return content


def _state(path: Path, status: Mapping[str, Any], updated: float | None) -> str:
    locked = is_locked(path)
    if locked:
        return "running"
    state = text_of(status, "state") or "unknown"
    if state != "running":
        return state
    return "running" if locked is None and _seems_alive(status, updated) else "died"


def _seems_alive(status: Mapping[str, Any], updated: float | None) -> bool:
    """Whether the trainer is there, by its own word: what is left where no lock tells."""
    if status.get("host") not in (None, socket.gethostname()):
        # Another machine's processes cannot be seen from here: its word stands while it is fresh.
        return updated is not None and time.time() - updated < _TRUST_S
    pid = number_of(status, "pid")
    return pid is None or is_alive(int(pid), at=updated)


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
