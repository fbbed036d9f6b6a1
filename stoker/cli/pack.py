"""`stoker pack`: several runs at once on one GPU."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from stoker.cli.flags import parse
from stoker.cli.pack_view import make_view
from stoker.config.numbers import parse_number
from stoker.config.schema import RunSettings
from stoker.config.written import COUNT
from stoker.errors import ConfigError, StokerError
from stoker.jobs.advice import population_instead
from stoker.jobs.entry import Options
from stoker.jobs.job_file import read_jobs, refuse_twins
from stoker.jobs.pack import Packer
from stoker.jobs.report import Report, report_on
from stoker.jobs.words import Job, copies
from stoker.runs.strict_json import dumps, write_atomically
from stoker.train.signals import StopRequest

_COMMAND = (sys.executable, "-m", "stoker.cli.job")
_REPORT_NAME = "report.json"
_GRACE_S = 10.0
"""For the packer, on top of what the slowest job has to save and leave."""


@dataclass(frozen=True, kw_only=True)
class PackArguments:
    """Train several runs at once on one GPU, each in a process and on cores of its own.

    What is to be trained comes after `--`, as for `stoker`; or in a file, a list of jobs.
    """

    jobs: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[FILE]")] = None
    """A YAML file: a list, each entry a list of words ([train, --env, CartPole-v1]) or settings by
    name."""
    copies: Annotated[int, COUNT, tyro.conf.arg(aliases=("-n",))] = 1
    """How many times to train what comes after `--`: with the seeds s, s + 1 and so on."""
    at_once: Annotated[int, COUNT] = 0
    """Jobs at once; 0 is as many as cores, memory and the idle share of the GPU allow."""
    cores_each: Annotated[int, COUNT] = 1
    """The fewest cores that a job gets."""
    mps: Literal["auto", "on", "off"] = "auto"
    """NVIDIA's MPS, through which kernels of several jobs run at the same time. `auto`: if it can
    be started, and one job alone does not fill the GPU."""
    baseline: bool = True
    """Measure one job alone first, on all cores: what packing brings is told against that."""
    baseline_for: float = 15.0
    """Seconds to measure it for."""
    restarts: Annotated[int, COUNT] = 3
    """How often a job that was killed goes on from its checkpoint."""
    name: str = ""
    """Name of the pack's folder, and of runs without a name; empty makes one from the time."""
    runs_dir: str = "runs"
    """Where run folders lie, and the pack's."""
    json: bool = False
    """Print the outcome as one JSON object on standard output; all else goes to standard error."""


def pack(arguments: list[str]) -> int:
    """`stoker pack`."""
    flags, words = _split(arguments)
    given = parse(PackArguments, flags, "pack")
    _check(given, words)
    name = given.name or time.strftime("pack-%Y%m%d-%H%M%S")
    folder = Path(given.runs_dir) / name
    jobs = _jobs(given, words, name, folder)
    _make(folder)
    with closing(make_view(given.json)) as view, StopRequest(_deadline(jobs)) as stop:
        advice = population_instead(jobs)
        if advice is not None:
            view.says(advice)
        began = time.monotonic()
        packer = Packer(jobs, _options(given), folder, _COMMAND, view, stop)
        packer.run()
        report = report_on(packer, time.monotonic() - began)
        view.ends(packer.entries, report)
    told = dumps({**report.fields, "advice": advice})
    if given.json:
        print(told)
    try:
        write_atomically(folder / _REPORT_NAME, told)
    except OSError as error:
        raise StokerError(f"{folder / _REPORT_NAME} could not be written: {error}.") from error
    return _exit_code(report, stop)


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """What is the pack's, and what comes after `--`."""
    if "--" not in arguments:
        return arguments, None
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _check(given: PackArguments, words: list[str] | None) -> None:
    problems = []
    if (given.jobs is None) == (words is None):
        problems.append(
            "Say what to train, after `--` or in a file, not both: `stoker pack -n 4 -- train "
            "--env CartPole-v1`, or `stoker pack jobs.yaml`."
        )
    if given.jobs is not None and given.copies != 1:
        problems.append("-n is for what comes after `--`; a file lists every job.")
    for what, number, least in (
        ("-n", given.copies, 1),
        ("at_once", given.at_once, 0),
        ("cores_each", given.cores_each, 1),
        ("restarts", given.restarts, 0),
    ):
        if number < least:
            problems.append(f"{what} is {number}; it must be {least} or more.")
    if not (math.isfinite(given.baseline_for) and given.baseline_for > 0):
        problems.append(f"baseline_for is {given.baseline_for:g}; it must be above 0.")
    if given.name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", given.name):
        problems.append(
            f"name {given.name!r} cannot be a folder's name; use up to 80 letters, digits, '.', "
            "'_' and '-', beginning with a letter or digit."
        )
    if problems:
        raise ConfigError(problems)


def _jobs(given: PackArguments, words: list[str] | None, name: str, folder: Path) -> list[Job]:
    if given.jobs is not None:
        jobs = read_jobs(Path(given.jobs), name, folder, given.runs_dir)
    else:
        jobs = copies(words or [], given.copies, name, given.runs_dir)
    refuse_twins(jobs)
    return jobs


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} exists already. Choose another name with --name.") from error
    except OSError as error:
        raise ConfigError(f"Cannot make the folder {folder}: {error.strerror}.") from error


def _options(given: PackArguments) -> Options:
    return Options(
        at_once=given.at_once,
        cores_each=given.cores_each,
        restarts=given.restarts,
        baseline_s=given.baseline_for if given.baseline else 0.0,
        mps=given.mps,
    )


def _deadline(jobs: Sequence[Job]) -> float:
    """Seconds in which all jobs will have saved and left, by what each is given for that."""
    longest = RunSettings.stop_deadline
    for job in jobs:
        try:
            longest = max(longest, parse_number(job.settings.get("stop_deadline", longest)))
        except (ValueError, TypeError):
            continue  # the job says so itself
    return longest + _GRACE_S


def _exit_code(report: Report, stop: StopRequest) -> int:
    if report.state == "finished":
        return 0
    return 1 if stop.signal is None else 128 + stop.signal
