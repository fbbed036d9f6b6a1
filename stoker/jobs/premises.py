"""What jobs share: cores, a GPU, MPS on it; and how many of them there is room for at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from stoker.errors import ConfigError
from stoker.jobs.admit import Admission, Need, Room, admit
from stoker.jobs.alone import Taken, as_baseline, measure_alone, memory_of
from stoker.jobs.attempt import Attempt, first_words
from stoker.jobs.chip import Chip
from stoker.jobs.cores import our_cores, split
from stoker.jobs.entry import Entry, Options
from stoker.jobs.mps import Mps
from stoker.jobs.track import WARM_UP_S
from stoker.jobs.words import Job
from stoker.monitor.records import GpuSample

_GIB = 2**30
_FULL = 0.9
"""Share of the multiprocessors past which one job leaves nothing for MPS to share out."""


class Premises:
    """Cores that are free, the GPU, and what was found out about both. `says` hears of it."""

    def __init__(self, jobs: Sequence[Job], options: Options, says: Callable[[str], None]) -> None:
        self.chip, self.mps = Chip(), Mps()
        self.alone = Taken()
        self.admission: Admission | None = None
        """How many at once; None until that is known, and then it is one."""
        self.free: list[tuple[int, ...]] = []
        """Cores for a job each."""
        self._jobs, self._options, self._says = jobs, options, says
        self._cores = our_cores()
        self._before: GpuSample | None = None
        self._host_free = psutil.virtual_memory().available / _GIB

    @contextmanager
    def open(self) -> Iterator[None]:
        """While it is open the GPU is watched; MPS, if it was started, ends with it."""
        with self.chip, closing(self.mps):
            self._before = self.chip.now
            yield

    def measure_first(
        self, folder: Path, command: Sequence[str], wanted: Callable[[], bool]
    ) -> None:
        """See what the first job makes and takes alone, on all cores."""
        first, seconds = self._jobs[0], self._options.baseline_s
        if not seconds or len(self._jobs) < 2 or first.words[0] != "train":
            return
        self._says(f"Measuring one job alone for {seconds:g} s, on all cores.")
        job, log = as_baseline(first, folder), folder / "alone.log"
        attempt = Attempt(job, first_words(job, self._cores), self._cores, command, log, {})
        self.alone = measure_alone(attempt, log, self.chip, self._before, seconds, wanted)
        if self.alone.why_unknown and wanted():
            self._says(f"What one job makes alone is unknown: {self.alone.why_unknown}")

    def start_mps(self) -> None:
        """If it is wanted and can help."""
        self.mps.why_not = self._why_no_mps()
        if self.mps.why_not is None and self.mps.start():
            self._says("MPS: on; kernels of several jobs run at the same time.")
        elif self._options.mps == "on":
            raise ConfigError(f"mps is on, but {self.mps.why_not}. Use --mps auto or off.")
        elif self.chip.gpu is not None:
            self._says(f"MPS: off; {self.mps.why_not}.")

    def _why_no_mps(self) -> str | None:
        active = None if self.alone.gpu is None else self.alone.gpu.sm_active
        if self._options.mps == "off":
            return "it is not wanted"
        if self.chip.gpu is None:
            return f"no GPU is known ({self.chip.why_none})"
        if all(job.settings.get("device") == "cpu" for job in self._jobs):
            return "no job trains on the GPU"
        if self._options.mps == "on":
            return None
        if len(self._jobs) < 2:
            return "there is one job"
        if active is not None and active >= _FULL:
            return f"one job has {active:.0%} of the multiprocessors at work, so it cannot help"
        return None

    def divide(self) -> None:
        """Cores for as many jobs as may run at once, or, until that is known, might."""
        if self._options.at_once:
            self.admission = self._as_asked()
        elif self.alone.host_gib is not None:
            self._admit(self.alone)
        most = len(self._cores) // self._options.cores_each
        at_once = self.admission.at_once if self.admission else min(len(self._jobs), most)
        self.free = split(self._cores, max(1, at_once))

    def _as_asked(self) -> Admission:
        asked = min(self._options.at_once, len(self._jobs))
        if asked > len(self._cores):
            raise ConfigError(
                f"at_once is {asked}, and there are {len(self._cores)} cores; each job needs one."
            )
        return Admission(asked, ("asked for",))

    def _admit(self, taken: Taken) -> None:
        gpu = taken.gpu
        share = None if gpu is None else gpu.busy
        if self.mps.why_not is None and gpu is not None and gpu.sm_active is not None:
            share = gpu.sm_active  # kernels run side by side, so that is what there is to share
        need = Need(taken.gpu_gib, taken.host_gib, share)
        room = Room(len(self._cores), _free_gib(self._before), self._host_free)
        self.admission = admit(len(self._jobs), self._options.cores_each, room, need)
        self._says(
            f"At once: {self.admission.at_once} of {len(self._jobs)} jobs "
            f"({'; '.join(self.admission.reasons)})."
        )

    def admit_by(self, entry: Entry) -> None:
        """Now that the first job trains: what it takes says how many may join it."""
        began, now = entry.track.began, time.time()
        if entry.attempt is None or began is None:
            return
        if self.chip.gpu is not None and now - began < WARM_UP_S:
            return
        taken = memory_of(entry.attempt, self.chip, self._before)
        self._admit(taken._replace(gpu=self.chip.means(began, now)))
        assert self.admission is not None
        others = [core for piece in self.free for core in piece]
        joining = min(self.admission.at_once - 1, len(others))
        self.free = split(others, joining) if joining else self.free


def _free_gib(sample: GpuSample | None) -> float | None:
    if sample is None or sample.memory_total_gib is None or sample.memory_used_gib is None:
        return None
    return sample.memory_total_gib - sample.memory_used_gib
