"""The conductor of a sweep: takes trials, has their seeds trained, and judges them as they go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, Protocol

from stoker.errors import ConfigError, StokerError
from stoker.jobs.fate import End, fate_of
from stoker.jobs.words import Job, make_job
from stoker.sweep.course import TENTHS, Course
from stoker.sweep.engine import Engine, Process
from stoker.sweep.ledger import BEAT_S, Ledger, Row, Taken
from stoker.sweep.plan import Plan, crowd_settings, settings_for
from stoker.train.signals import StopRequest

_EVERY_S = 0.2
_LOOKS_APART_S = 2.0
"""Between looks at a ledger in which nothing of ours has changed."""
_LATE = 1.05
"""Times its budget after which a run is ended that has logged nothing past it."""
_LATE_S = 2.0
_LEAVES_WITHIN_S = 60.0
_MOST_FAILED = 5
"""Trials in a row that fail: then it is not their settings that are wrong."""
_SHOWN_LINES = 8
_MISTAKE = 2


@dataclass
class Running:
    """A trial of ours, and the seed that it is at; or several, as agents of one population."""

    members: tuple[Taken, ...]
    course: Course
    crowd: bool = False
    """Whether all seeds of all members train at once, as agents of a population."""
    rewards: dict[int, float] = field(default_factory=dict)
    """By seed, of those that are done."""
    env_steps: list[int] = field(default_factory=list)
    """Of the same."""
    process: Process | None = None
    seen_at: float | None = None
    """When this seed was seen to train."""
    ends: Literal["budget", "pruned"] | None = None
    """Why it was asked to leave."""
    asked_at: float = 0.0
    reported: int = 0
    """Marks of this seed that were reported."""

    @property
    def taken(self) -> Taken:
        """The trial, or the first of several."""
        return self.members[0]

    @property
    def reward(self) -> float | None:
        """The mean so far; None is unknown."""
        now = self.course.reward
        known = [*self.rewards.values(), *([] if now is None else [now])]
        return fmean(known) if known else None


class Board(NamedTuple):
    """How all of it stands, for a screen."""

    plan: Plan
    rows: Sequence[Row]
    running: Sequence[Running]


class Audience(Protocol):
    """Whoever follows a sweep."""

    def says(self, line: str) -> None: ...

    def shows(self, board: Board) -> None: ...


class Sweep:
    """Runs trials of a ledger until all are done, or somebody asks to stop. Used once."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        folder: Path,
        by: str,
        audience: Audience,
        stop: StopRequest,
    ) -> None:
        self.ledger, self.plan, self._engine = ledger, ledger.plan, engine
        self.running: list[Running] = []
        self.rows: list[Row] = ledger.rows()
        self._trials, self._by = folder / "trials", by
        self._audience, self._stop = audience, stop
        self._failed_in_a_row = 0
        self._beat_at = self._looked_at = 0.0

    def run(self) -> None:
        """All trials; those of ours that have not ended when we leave are given back."""
        self._trials.mkdir(parents=True, exist_ok=True)
        with self._engine.open(), self._none_left_behind():
            while not self._stop.requested and self._look_up() < self.plan.trials:
                self._fill()
                for running in list(self.running):
                    self._look_at(running)
                self._keep_alive()
                self._audience.shows(Board(self.plan, self.rows, self.running))
                time.sleep(_EVERY_S)
        self.rows = self.ledger.rows()

    def _look_up(self) -> int:
        """How many trials are done, here and elsewhere, as of a moment ago."""
        if time.monotonic() - self._looked_at >= _LOOKS_APART_S:
            self._looked_at, self.rows = time.monotonic(), self.ledger.rows()
        return sum(row.state in ("complete", "pruned") for row in self.rows)

    @contextmanager
    def _none_left_behind(self) -> Iterator[None]:
        try:
            yield
        finally:
            processes = [each.process for each in self.running if each.process is not None]
            for process in processes:
                process.stop()
            for process in processes:
                process.wait(_LEAVES_WITHIN_S)
            for taken in self._all_taken():
                self.ledger.give_back(taken)

    def _all_taken(self) -> list[Taken]:
        return [taken for running in self.running for taken in running.members]

    def _fill(self) -> None:
        """The next seeds of trials that have begun, then new trials, while there is room."""
        for running in self.running:
            if running.process is None and self._engine.room() > 0:
                self._start(running)
        waiting = any(row.state == "waiting" for row in self.rows)
        while waiting and self._engine.room() > 0:
            self._looked_at = 0.0
            members = tuple(self._take())
            if not members:
                return
            crowd = self.plan.agents > 1 and len(members) * len(self.plan.seeds) > 1
            running = Running(members, Course(self.plan.horizon), crowd)
            self.running.append(running)
            self._start(running)

    def _take(self) -> Iterator[Taken]:
        """As many trials as one process trains, while there are any."""
        for _ in range(self.plan.together):
            taken = self.ledger.take(self._by)
            if taken is None:
                return
            yield taken

    def _start(self, running: Running) -> None:
        running.course, running.reported = Course(self.plan.horizon), 0
        running.seen_at = running.ends = None
        running.process = self._engine.start(self._job(running))

    def _job(self, running: Running) -> Job:
        """The run of a trial's next seed."""
        seed = self.plan.seeds[len(running.rewards)]
        name = f"trial-{running.taken.number:04d}-s{seed}"
        words = ("train", "--config", str(self._trials / f"{name}.yaml"))
        settings = settings_for(self.plan.base, running.taken.drawn, seed)
        if running.crowd:
            drawn = [taken.drawn for taken in running.members]
            settings = crowd_settings(self.plan.base, drawn, self.plan.seeds)
        file = {**settings, "run_name": name, "runs_dir": str(self._trials)}
        return make_job(words, name, str(self._trials))._replace(settings=settings, file=file)

    def _look_at(self, running: Running) -> None:
        process = running.process
        if process is None:
            return
        code = process.ended()  # before its news, so that none comes after the last
        if running.seen_at is None and process.begun():
            running.seen_at = time.monotonic()
        for line in process.news():
            running.course.note(line)
        if running.ends is None:
            self._judge(running, process)
        elif time.monotonic() - running.asked_at > _LEAVES_WITHIN_S:
            code = process.wait(0.0)
        if code is not None:
            running.process = None
            self._note_end(running, process, code)

    def _judge(self, running: Running, process: Process) -> None:
        """Report what is new, and end what need not go on."""
        course, done = running.course, list(running.rewards.values())
        while not running.crowd and running.ends is None and running.reported < len(course.marks):
            mark = course.marks[running.reported]
            running.reported += 1
            step = TENTHS * len(done) + running.reported
            if mark is not None and self.ledger.report(running.taken, step, fmean([*done, mark])):
                running.ends = "pruned"
        if running.ends is None and (self._is_late(running) or self._budget_is_over(course)):
            running.ends = "budget"
        if running.ends is not None:
            running.asked_at = time.monotonic()
            process.stop()

    def _budget_is_over(self, course: Course) -> bool:
        return self.plan.budget_s is not None and course.over

    def _is_late(self, running: Running) -> bool:
        if self.plan.budget_s is None or running.seen_at is None:
            return False
        return time.monotonic() - running.seen_at > _LATE * self.plan.budget_s + _LATE_S

    def _note_end(self, running: Running, process: Process, code: int) -> None:
        fate = fate_of(End(code, most_restarts=1))
        if running.ends == "pruned":
            self.running.remove(running)
            self._finish(running, "pruned")
        elif running.ends == "budget" or fate.state == "finished":
            self._part(running, process) if running.crowd else self._note_seed(running)
        elif self._stop.requested:
            return  # it is given back with all others
        elif fate.state == "failed":
            self._note_failure(running, process, code, fate.why or "it failed")
        else:
            self.running.remove(running)
            for taken in running.members:
                self.ledger.lose(taken, fate.why or "it was killed")
                self._audience.says(f"Trial {taken.number}: {fate.why}; it is run again.")
            self._looked_at = 0.0

    def _part(self, running: Running, process: Process) -> None:
        """Trials that were agents of one population, each with what its own have come to."""
        standings, seeds = process.standings(), self.plan.seeds
        steps = [running.course.env_steps] * len(seeds)
        self.running.remove(running)
        for place, taken in enumerate(running.members):
            agents = range(place * len(seeds), (place + 1) * len(seeds))
            rewards = {seeds[0] + a: standings[a] for a in agents if a in standings}
            self._finish(Running((taken,), running.course, True, rewards, steps))

    def _note_seed(self, running: Running) -> None:
        seed, reward = self.plan.seeds[len(running.rewards)], running.course.reward
        if reward is not None:
            running.rewards[seed] = reward
            running.env_steps.append(running.course.env_steps)
        if reward is None or len(running.rewards) == len(self.plan.seeds):
            self.running.remove(running)
            self._finish(running)

    def _finish(self, running: Running, pruned: str | None = None) -> None:
        """A trial that is over, with the rewards of all its seeds or without."""
        if len(running.rewards) < len(self.plan.seeds):
            pruned = pruned or "no episode ended in its time"
        known = [*running.rewards.values()]
        number, reward = running.taken.number, running.reward if pruned else fmean(known)
        shown = "unknown" if reward is None else f"{reward:.1f}"
        if pruned is None:
            self.ledger.complete(running.taken, running.rewards, running.env_steps)
            self._audience.says(f"Trial {number}: reward {shown} with {_told(running.taken)}.")
        else:
            why = f"pruned at a reward of {shown}" if pruned == "pruned" else pruned
            self.ledger.prune(running.taken, why)
            self._audience.says(f"Trial {number}: {why}.")
        self._failed_in_a_row, self._looked_at = 0, 0.0

    def _note_failure(self, running: Running, process: Process, code: int, why: str) -> None:
        self.running.remove(running)
        said = process.last_lines(_SHOWN_LINES)
        for taken in running.members:
            self.ledger.fail(taken, why)
        self._audience.says(f"Trial {running.taken.number}: {why}, with {_told(running.taken)}.")
        for line in said:
            self._audience.says(f"  {line}")
        self._failed_in_a_row += 1
        self._looked_at = 0.0
        last = said[-1].strip() if said else "nothing was said"
        if code == _MISTAKE:  # which no other draw mends
            raise ConfigError(f"A trial could not begin: {last}")
        if self._failed_in_a_row >= _MOST_FAILED:
            raise StokerError(
                f"{_MOST_FAILED} trials in a row have failed, the last with: {last} What they "
                f"said is in {self._trials}. Once that is mended, go on with --resume."
            )

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            self.ledger.beat(self._all_taken())


def _told(taken: Taken) -> str:
    """What a trial drew, in a few digits."""
    shown = (
        f"{name} {f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in taken.drawn.items()
    )
    return ", ".join(shown)
