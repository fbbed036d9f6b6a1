"""Ours and peers, each in a living process of its own (`bench.peers`), measured by turns.

All have warmed up before the first is measured, and whoever is not measured waits for its turn
without touching the device.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from bench.gpu import GpuWatch
from bench.record import Row

_PATIENCE_S = 120.0


class Entrant(NamedTuple):
    """One side."""

    name: str
    module: str
    """In `bench.peers`."""
    asked: Mapping[str, object]
    """Its arguments; see `bench.peers.child.Task`."""
    repeats: int = 3
    alone: bool = False
    """Whether it warms up while no other does, since it chooses kernels by timing them."""


class Result(NamedTuple):
    """What came of an entrant: a line for each stretch, or why there is none."""

    entrant: Entrant
    lines: list[dict[str, Any]]
    failure: str | None

    @property
    def rates(self) -> list[int]:
        return [line["steps_per_s"] for line in self.lines]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def summary(self) -> dict[str, Any]:
        """For the details of a row."""
        failed = {"failed": self.failure} if self.failure else {}
        if not self.lines:
            return failed
        spread = (max(self.rates) - min(self.rates)) / self.rate
        last = {k: v for k, v in self.lines[-1].items() if k not in ("steps_per_s", "between")}
        return {"steps_per_s": self.rates, "spread": round(spread, 3), **last, **failed}


class _Child:
    """A process that trains when asked to, and is ended when it does not answer."""

    def __init__(self, entrant: Entrant, closing: ExitStack) -> None:
        self.entrant = entrant
        self.lines: list[dict[str, Any]] = []
        self.failure: str | None = None
        words = [f"--{name}={value}" for name, value in entrant.asked.items()]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, the child writes to it until the end
        self._errors = closing.enter_context(errors)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.peers.{entrant.module}", *words, "--on-request"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        closing.callback(self._close)

    def ask(self) -> None:
        """To warm up, the first time; then for a stretch."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` finds that it has ended
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """The next line; None if it has ended, and then there is a failure."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(_PATIENCE_S, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if line:
            return dict(json.loads(line))
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["nothing was said"]
        self.failure = f"it ended with {code}: {said[-1]}"
        return None

    def stretch(self, gpu: GpuWatch) -> None:
        """Have it train for a stretch, unless it has failed."""
        if self.failure is not None:
            return
        self.ask()
        line = self.answer()
        if line is not None:
            self.lines.append(line | {"gpu": gpu.between(*line["between"])})

    def _close(self) -> None:
        """It leaves by itself when nothing more can be asked, or else is made to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def contest(entrants: Sequence[Entrant]) -> list[Result]:
    """Measure everyone, the order turned round each time; results in the order given."""
    with ExitStack() as closing, GpuWatch() as gpu:
        children = [_Child(entrant, closing) for entrant in entrants]
        for child in children:
            if child.entrant.alone:
                child.ask()
                child.answer()
        others = [child for child in children if not child.entrant.alone]
        for child in others:
            child.ask()
        for child in others:
            child.answer()
        for turn in range(max(entrant.repeats for entrant in entrants)):
            for child in children if turn % 2 == 0 else children[::-1]:
                if turn < child.entrant.repeats:
                    child.stretch(gpu)
    return [Result(child.entrant, child.lines, child.failure) for child in children]


def rows(bench: str, case: str, results: Sequence[Result]) -> list[Row]:
    """One for each peer, the best first; the first result is ours.

    A peer that failed has a row that says why, and so has every peer where ours did.
    """
    ours, *peers = results
    ranked = sorted(peers, key=lambda peer: -peer.rate if peer.lines else 0.0)
    return [
        _row(bench, case, ours, peer, best=peer is ranked[0] and bool(peer.lines))
        for peer in ranked
    ]


def _row(bench: str, case: str, ours: Result, peer: Result, best: bool) -> Row:
    details = {"ours": ours.summary(), "peer": peer.summary(), "best_peer": best}
    rate = peer.rate if peer.lines else None
    mine = ours.rate if ours.lines else None
    ratio = round(mine / rate, 2) if mine and rate else None
    return Row(bench, case, mine, "steps/s", rate, peer.entrant.name, ratio, details=details)
