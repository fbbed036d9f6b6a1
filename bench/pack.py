"""What packing brings: several jobs at once on one GPU, against one job alone on all cores.

With MPS and without it, and, where environments are tensors, against one process with a population
of as many agents. Every side is a pack, so all are measured the same way: from when the last job
is warm, for a while. A case's sides follow one another in one run.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from bench.record import Cases, Row
from stoker.errors import ConfigError
from stoker.jobs.entry import Board, Options
from stoker.jobs.pack import Packer
from stoker.jobs.report import report_on
from stoker.jobs.words import copies
from stoker.train.signals import StopRequest

_HAS_GPU = torch.cuda.is_available()
_JOBS = 4 if _HAS_GPU else 2
_SECONDS = 20.0 if _HAS_GPU else 5.0
_LONGEST_S = 55.0
_COMMAND = (sys.executable, "-m", "stoker.cli.job")
_HEAVY = "--preset heavy" if _HAS_GPU else "--n-envs 4 --n-steps 64 --batch-size 64 --n-epochs 4"
_SAME_WORK = "--target-kl None --eval-episodes 0 --timesteps 100G --checkpoint-every 100G"
_SHOWN = ("measured_s", "gpu", "mps", "at_once")


class Side(NamedTuple):
    """A pack that was measured."""

    sps: float | None
    details: dict[str, Any]


class _Timed:
    """Follows a pack, and ends it once it was measured for long enough, or takes too long."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop, self._began = stop, time.monotonic()
        self.packer: Packer | None = None

    def says(self, line: str) -> None:
        print(line, file=sys.stderr)

    def shows(self, board: Board) -> None:
        full = self.packer.full_since if self.packer else None
        measured = full is not None and time.time() - full >= _SECONDS
        if measured or time.monotonic() - self._began > _LONGEST_S:
            self._stop.signal = signal.SIGTERM


def _side(words: str, jobs: int, mps: Literal["on", "off"]) -> Side:
    stop = StopRequest(None)
    timed = _Timed(stop)
    with tempfile.TemporaryDirectory() as runs:
        options = Options(at_once=jobs, restarts=0, mps=mps)
        folder = Path(runs) / "pack"
        folder.mkdir()
        packed = copies(words.split(), jobs, "job", runs)
        timed.packer = Packer(packed, options, folder, _COMMAND, timed, stop)
        began = time.monotonic()
        try:
            timed.packer.run()
        except ConfigError as error:
            return Side(None, {"failed": str(error)})
        report = report_on(timed.packer, time.monotonic() - began)
    details = {name: report.fields[name] for name in _SHOWN}
    details["job_sps"] = [job["sps"] for job in report.fields["jobs"]]
    return Side(report.total_sps, details)


def _compare(env: str) -> Iterator[Row]:
    tensors = env.startswith("tensor/")
    narrow = " --network-arch 64,64" if tensors or not _HAS_GPU else ""  # a population's limit
    built = " --kernels fused" if tensors else ""  # before anything is measured, on every side
    words = f"train --env {env} {_HEAVY}{narrow}{built} {_SAME_WORK}"
    alone = _side(words, 1, "off")
    apart = _side(words, _JOBS, "off")
    row = partial(_row, env)
    yield row("MPS off", apart, "one job alone", alone)
    shared = _side(words, _JOBS, "on")
    yield row("MPS on", shared, "one job alone", alone)
    yield row("MPS on", shared, "MPS off", apart)
    if tensors:
        crowd = _side(f"{words} --population {_JOBS}", 1, "off")
        best = max(apart, shared, key=lambda side: side.sps or 0.0)
        yield row("the better of both", best, f"a population of {_JOBS}", crowd)


def _row(env: str, how: str, ours: Side, peer_name: str, peer: Side) -> Row:
    ratio = round(ours.sps / peer.sps, 3) if ours.sps and peer.sps else None
    return Row(
        "pack",
        f"{_JOBS} jobs of {env}, {how}",
        None if ours.sps is None else round(ours.sps),
        "steps/s",
        None if peer.sps is None else round(peer.sps),
        peer_name,
        ratio,
        details={"ours": ours.details, "peer": peer.details},
    )


def cases_for(env: str) -> Cases:
    """The comparison on another environment."""
    return {env: partial(_compare, env)}


CASES: Cases = {
    env: partial(_compare, env)
    for env in ("CartPole-v1", "stoker/Mission-v0", "tensor/CartPole-v1")
}
