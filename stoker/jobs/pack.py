"""The packer: starts jobs as there is room, follows them, and starts again what was killed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.jobs.alone import follow
from stoker.jobs.attempt import Attempt, first_words, last_lines, resuming_words, saved_steps
from stoker.jobs.entry import Audience, Board, Entry, Options
from stoker.jobs.fate import End, fate_of
from stoker.jobs.premises import Premises
from stoker.jobs.track import WARM_UP_S
from stoker.jobs.words import Job
from stoker.train.signals import StopRequest

_EVERY_S = 0.2
_TAKES_ALONG_S = 30.0
"""A failure so soon after another job was killed may come of that, where both used MPS."""
_SHOWN_LINES = 8
_LEAVES_WITHIN_S = 60.0


class Packer:
    """Runs jobs to their ends, each in a process and on cores of its own. Used once."""

    def __init__(
        self,
        jobs: Sequence[Job],
        options: Options,
        folder: Path,
        command: Sequence[str],
        audience: Audience,
        stop: StopRequest,
    ) -> None:
        """`command` starts a job: the numbers of its cores and its words are added."""
        self.options, self.folder = options, folder
        self.entries = [Entry(job, folder / f"{job.name}.log") for job in jobs]
        self.premises = Premises(jobs, options, audience.says)
        self.full_since: float | None = None
        """Since when as many jobs as may train at once do, and are warm. Unix time."""
        self.full_until: float | None = None
        """Until when, with nobody left to take a place that is free."""
        self._command, self._audience, self._stop = command, audience, stop
        self._killed_at = -_TAKES_ALONG_S
        self._asked_to_leave = False

    def run(self) -> None:
        """All jobs, until none is left or somebody asks to stop."""
        premises, stop = self.premises, self._stop
        with premises.open(), self._none_left_behind():
            premises.measure_first(self.folder, self._command, lambda: not stop.requested)
            if not stop.requested:
                premises.start_mps()
            premises.divide()
            while self._unfinished():
                if stop.requested:
                    self._ask_to_leave()
                else:
                    self._fill()
                self._look()
                self._audience.shows(Board(self.entries, premises.chip.now, premises.alone.sps))
                time.sleep(_EVERY_S)

    @contextmanager
    def _none_left_behind(self) -> Iterator[None]:
        try:
            yield
        finally:
            running = [entry.attempt for entry in self.entries if entry.attempt is not None]
            for attempt in running:
                attempt.stop()
            for attempt in running:
                attempt.wait(_LEAVES_WITHIN_S)

    def _unfinished(self) -> bool:
        return any(entry.state in ("queued", "starting", "training") for entry in self.entries)

    def _ask_to_leave(self) -> None:
        if self._asked_to_leave:
            return
        self._asked_to_leave = True
        for entry in self.entries:
            if entry.attempt is not None:
                entry.attempt.stop()
            elif entry.state == "queued":
                entry.state, entry.why = "stopped", entry.why or "it had not begun"

    def _fill(self) -> None:
        """Start who is next, while there is room."""
        premises = self.premises
        at_once = premises.admission.at_once if premises.admission else 1
        running = sum(entry.attempt is not None for entry in self.entries)
        queued = [entry for entry in self.entries if entry.state == "queued"]
        for entry in queued[: max(0, at_once - running)]:
            if premises.free:
                self._start(entry, premises.free.pop(0))

    def _start(self, entry: Entry, cores: tuple[int, ...]) -> None:
        job, again = entry.job, entry.code is not None
        words, how, saved = first_words(job, cores), "started", saved_steps(job)
        own = job.words[0] == "resume" or not entry.was_there
        if again and saved is not None and own:
            words, how = resuming_words(job), f"goes on from step {saved:,}"
        elif again:
            self._set_aside(entry)
            how = "starts anew, as it had no checkpoint"
        else:
            entry.was_there = job.path.exists()
        mps = self.premises.mps.surroundings
        entry.attempt = Attempt(job, words, cores, self._command, entry.log, mps)
        entry.cores, entry.state = cores, "starting"
        count = f"restart {entry.restarts} of {self.options.restarts}, " if again else ""
        numbers = ",".join(map(str, cores))
        self._audience.says(f"{job.name}: {how} ({count}cores {numbers}).")

    def _set_aside(self, entry: Entry) -> None:
        """Make room for a run that begins anew, and lose nothing of what there was."""
        path = entry.job.path
        if path.exists() and not entry.was_there and entry.job.words[0] == "train":
            shutil.move(path, self.folder / f"{entry.job.name}-killed-{entry.restarts}")

    def _look(self) -> None:
        for entry in self.entries:
            if entry.attempt is not None:
                self._look_at(entry, entry.attempt)
        training = [entry for entry in self.entries if entry.state == "training"]
        if self.premises.admission is not None:
            self._note_fullness(training, self.premises.admission.at_once)
        elif training:
            self.premises.admit_by(training[0])

    def _look_at(self, entry: Entry, attempt: Attempt) -> None:
        code = attempt.ended()
        entry.seen = attempt.look() or entry.seen
        follow(attempt, entry.track)
        if code is not None:
            self._note_end(entry, code)
        elif entry.state == "starting" and entry.seen is not None and entry.seen.steps:
            entry.state = "training"

    def _note_end(self, entry: Entry, code: int) -> None:
        entry.attempt, entry.code = None, code
        self.premises.free.append(entry.cores)
        now = time.monotonic()
        end = End(
            code,
            self._stop.requested,
            _is_done(entry),
            entry.restarts,
            self.options.restarts,
            self.premises.mps.why_not is None and now - self._killed_at < _TAKES_ALONG_S,
        )
        entry.state, entry.why = fate_of(end)
        if entry.state == "queued":
            entry.restarts += 1
        if code < 0:
            self._killed_at = now
        told = "ended" if entry.state == "queued" else entry.state
        self._audience.says(f"{entry.job.name}: {told}{f'; {entry.why}' if entry.why else ''}.")
        if entry.state == "failed":
            for line in last_lines(entry.log, _SHOWN_LINES):
                self._audience.says(f"  {line}")

    def _note_fullness(self, training: Sequence[Entry], at_once: int) -> None:
        begun = [entry.track.began for entry in training if entry.track.began is not None]
        if self.full_since is None and len(begun) == at_once:
            self.full_since = max(begun) + WARM_UP_S
        if any(entry.state in ("queued", "starting") for entry in self.entries):
            return
        if self.full_until is None and len(training) < at_once:
            over = (entry.track.ended for entry in self.entries if entry not in training)
            self.full_until = max((at for at in over if at is not None), default=None)


def _is_done(entry: Entry) -> bool:
    wanted = None if entry.seen is None else entry.seen.status.get("timesteps")
    saved = saved_steps(entry.job)
    return isinstance(wanted, int) and saved is not None and saved >= wanted
