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
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import psutil

from bench.gpu import GpuWatch
from bench.record import Row

_PATIENCE_S = 100.0
_LEAVES_WITHIN_S = 5.0


class Entrant(NamedTuple):
    """One side."""

    name: str
    module: str
    """In `bench.peers`."""
    asked: Mapping[str, object]
    """Its arguments; see `bench.peers.child.Task`. True is a flag."""
    repeats: int = 3
    alone: bool = False
    """Whether it warms up while no other does, since it chooses kernels by timing them."""
    patience_s: float = _PATIENCE_S
    """Seconds in which it must warm up, or answer, or be ended."""


class Result(NamedTuple):
    """What came of an entrant: a line for each stretch, or why there is none."""

    entrant: Entrant
    lines: list[dict[str, Any]]
    failure: str | None
    memory_mb: float | None = None
    """The most that it and its processes were seen to hold."""
    start_up_s: float | None = None
    """From its start to the end of its first round, of whoever learns."""

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
        memory = {"host_memory_mb": self.memory_mb}
        energy = {"joules_per_million_steps": self._energy()}
        known = {"steps_per_s": self.rates, "spread": round(spread, 3)}
        return {**known, **last, **memory, **energy, **failed}

    def _energy(self) -> float | None:
        """Of the GPU; None where its power is unknown."""
        powers = [(line["gpu"] or {}).get("power_w") for line in self.lines]
        known = [power for power in powers if power is not None]
        return round(statistics.fmean(known) / self.rate * 1e6, 3) if known else None


class Child:
    """A process that trains when asked to, and is ended when it does not answer."""

    def __init__(self, entrant: Entrant, closing: ExitStack) -> None:
        self.entrant = entrant
        self.lines: list[dict[str, Any]] = []
        self.failure: str | None = None
        self.memory_mb: float | None = None
        self.start_up_s: float | None = None
        self._over_time = False
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, the child writes to it until the end
        self._errors = closing.enter_context(errors)
        self._born = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.peers.{entrant.module}", *_words(entrant)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        closing.callback(self.close)

    def ask(self) -> None:
        """To warm up, the first time; then for a stretch."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` finds that it has ended
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """The next line; None if it has ended, and then there is a failure."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(self.entrant.patience_s, self._end)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if line:
            told = dict(json.loads(line))
            if "first_round_at" in told:
                self.start_up_s = round(told["first_round_at"] - self._born, 2)
            return told
        self.failure = self._why(self._process.wait())
        return None

    def _why(self, code: int) -> str:
        if self._over_time:
            return f"it gave no answer within {self.entrant.patience_s:g} s, and was ended"
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["nothing was said"]
        return f"it ended with {code}: {said[-1][:300]}"

    def stretch(self, gpu: GpuWatch) -> None:
        """Have it train for a stretch, unless it has failed."""
        if self.failure is not None:
            return
        self.ask()
        line = self.answer()
        if line is not None:
            between = line.get("between")
            self.lines.append(line | {"gpu": gpu.between(*between) if between else None})
            self.memory_mb = max(self.memory_mb or 0.0, self._megabytes())

    def result(self) -> Result:
        """What came of it so far."""
        return Result(self.entrant, self.lines, self.failure, self.memory_mb, self.start_up_s)

    def _family(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _megabytes(self) -> float:
        """Of it and its processes; what they share is counted once."""
        held = 0.0
        for process in self._family():
            with suppress(psutil.Error):
                held += process.memory_full_info().pss
        return round(held / 2**20, 1)

    def _end(self) -> None:
        """With all that it started."""
        self._over_time = True
        for process in self._family():
            with suppress(psutil.Error):
                process.kill()

    def close(self) -> None:
        """It leaves by itself when nothing more can be asked, or else is made to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._end()
            self._process.wait()
        self._process.stdout.close()


def _words(entrant: Entrant) -> list[str]:
    given = [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in entrant.asked.items()
    ]
    return [*given, "--on-request"]


def say(what: str, **more: object) -> None:
    """How far a comparison is, as a JSON line."""
    print(json.dumps({"progress": what, **more}), flush=True)


def race(entrants: Sequence[Entrant], at_once: bool) -> list[Result]:
    """Have everyone learn: one by one from their start, or all at once; in the order given."""
    results = []
    if not at_once:
        for entrant in entrants:
            results += race([entrant], at_once=True)
        return results
    with ExitStack() as closing:
        children = [Child(entrant, closing) for entrant in entrants]
        for child in children:
            child.ask()
        ready = [child for child in children if child.answer() is not None]
        for child in ready:
            child.ask()
        for child in ready:
            line = child.answer()
            if line is not None:
                child.lines.append(line)
            say("learned", peer=child.entrant.name, failed=child.failure)
    return [child.result() for child in children]


def contest(entrants: Sequence[Entrant]) -> list[Result]:
    """Measure everyone, the order turned round each time; results in the order given."""
    with ExitStack() as closing, GpuWatch() as gpu:
        children = [Child(entrant, closing) for entrant in entrants]
        for child in children:
            if child.entrant.alone:
                child.ask()
                child.answer()
        others = [child for child in children if not child.entrant.alone]
        for child in others:
            child.ask()
        for child in others:
            child.answer()
        say("warm", failed={c.entrant.name: c.failure for c in children if c.failure})
        for turn in range(max(entrant.repeats for entrant in entrants)):
            for child in children if turn % 2 == 0 else children[::-1]:
                if turn < child.entrant.repeats:
                    child.stretch(gpu)
                    rate = child.lines[-1]["steps_per_s"] if child.lines else None
                    say("measured", peer=child.entrant.name, turn=turn, steps_per_s=rate)
    return [child.result() for child in children]


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
