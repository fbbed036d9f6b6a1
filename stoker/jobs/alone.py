"""What one job does and takes: alone, on all cores, for a while; or as it stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stoker.jobs.attempt import Attempt, last_lines
from stoker.jobs.chip import Chip
from stoker.jobs.track import SHORTEST_S, WARM_UP_S, Track, together
from stoker.jobs.words import Job, make_job, with_flags
from stoker.monitor.records import GpuSample

_LONGEST_S = 180.0
_LEAVES_WITHIN_S = 60.0
_EVERY_S = 0.1


class Taken(NamedTuple):
    """What a job was seen to make and to take; None is unknown."""

    sps: float | None = None
    gpu: GpuSample | None = None
    gpu_gib: float | None = None
    host_gib: float | None = None
    why_unknown: str | None = None


def as_baseline(job: Job, folder: Path) -> Job:
    """The same job, as a run of its own in `folder`."""
    words = with_flags(job.words, {"runs_dir": str(folder), "run_name": "alone"})
    return make_job(words, "alone", str(folder))._replace(file=job.file)


def measure_alone(
    attempt: Attempt,
    log: Path,
    chip: Chip,
    before: GpuSample | None,
    seconds: float,
    wanted: Callable[[], bool],
) -> Taken:
    """Let it train for so many seconds past its first ones, and end it."""
    track, began = Track(), time.monotonic()
    taken = Taken()
    while (code := attempt.ended()) is None and wanted():
        follow(attempt, track)
        if track.began is not None and taken == Taken():  # in case it ends soon
            taken = memory_of(attempt, chip, before)
        if _spanned(track) >= WARM_UP_S + seconds or time.monotonic() - began > _LONGEST_S:
            break
        time.sleep(_EVERY_S)
    if code is None:
        taken = memory_of(attempt, chip, before)
    attempt.stop()
    attempt.wait(_LEAVES_WITHIN_S)
    if code is not None and code != 0:
        said = last_lines(log, 1) or ["nothing was said"]
        return Taken(why_unknown=f"it left with {code}: {said[0].strip()}")
    since = _warm(track)
    sps = together([track], since, track.ended)
    why = None if sps is not None else f"it trained for less than {WARM_UP_S + SHORTEST_S:g} s"
    gpu = chip.means(since, track.ended) or chip.means(track.began, track.ended)
    return taken._replace(sps=sps, gpu=gpu, why_unknown=why)


def follow(attempt: Attempt, track: Track) -> None:
    """Note what the job has written since."""
    seen = attempt.look()
    if seen is not None:
        track.note(seen.at, seen.steps)


def memory_of(attempt: Attempt, chip: Chip, before: GpuSample | None) -> Taken:
    """What a job takes of the GPU's memory, its own or what is in use since then, and the host's.

    `before` is the GPU as it was before the job.
    """
    seen, now = attempt.look(), chip.now
    own = None if seen is None else seen.status.get("gpu/own_memory_gib")
    if not isinstance(own, float) and now is not None and before is not None:
        used, used_before = now.memory_used_gib, before.memory_used_gib
        own = None if used is None or used_before is None else max(0.0, used - used_before)
    return Taken(gpu_gib=own, host_gib=attempt.host_gib())


def _warm(track: Track) -> float | None:
    return None if track.began is None else track.began + WARM_UP_S


def _spanned(track: Track) -> float:
    if track.began is None or track.ended is None:
        return 0.0
    return track.ended - track.began
