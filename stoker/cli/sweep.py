"""`stoker sweep`: trials of settings, each judged by the reward that it comes to."""

from __future__ import annotations

import re
import shutil
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from stoker.cli.flags import parse
from stoker.cli.sweep_view import make_view, show_summary
from stoker.cli.train import TrainArguments, parse_train
from stoker.config.numbers import parse_seconds
from stoker.config.schema import Config
from stoker.config.vary import VARIED
from stoker.config.written import COUNT
from stoker.errors import ConfigError, StokerError
from stoker.jobs.cores import our_cores
from stoker.jobs.entry import Options
from stoker.jobs.premises import Premises
from stoker.jobs.words import Job, settings_of
from stoker.runs.lock import take_lock
from stoker.runs.strict_json import dumps, write_atomically
from stoker.sweep.plan import ENDLESS, Plan
from stoker.sweep.space import Space, capped, default_space, read_space_file, understand, without
from stoker.train.signals import StopRequest

if TYPE_CHECKING:
    from stoker.sweep.engine import Engine
    from stoker.sweep.ledger import Ledger

_COMMAND = (sys.executable, "-m", "stoker.cli.job")
_STORE_NAME, _PAGE_NAME = "study.db", "sweep.html"
_GRACE_S = 10.0
_BUDGET = "2m"
_TRIALS = 100
_WITHOUT_END = {"lr_schedule": "constant", "epsilon_steps": 10_000}
"""Settings of DQN that do not ask how long a run will be, which nobody knows of a budget."""
_GOES_ON = {"resume", "name", "runs_dir", "trials", "jobs", "storage", "engine", "restarts", "json"}
"""Flags that do not change what a sweep is."""


@dataclass(frozen=True, kw_only=True)
class SweepArguments(TrainArguments):
    """Search for settings that come to the highest reward, trial by trial.

    A trial trains several seeds, each for the same wall-clock time, so that speed counts; a trial
    that does worse than others is given up early. Every flag of `stoker train` settles a setting
    for all trials. `stoker sweep show NAME` tells how a sweep stands.
    """

    trials: Annotated[int, COUNT] = 0
    """Trials to run: completed or pruned, these are counted exactly. 0 is 100, or with --resume as
    many as there were to be."""
    jobs: Annotated[int, COUNT] = 0
    """Runs at once; 0 is as many as cores, memory and the idle share of the GPU allow."""
    space: Path | None = None
    """A YAML file of what to search; without it, the algorithm's own space (docs/sweep.md)."""
    budget: str = ""
    """Wall-clock time that a seed trains, as 90s, 10m or 1h; 2m unless --timesteps is given."""
    seeds: Annotated[int, COUNT] = 3
    """Seeds that a trial trains with, one after the other: --seed and those that follow it."""
    pruner: Literal["median", "halving", "none"] = "median"
    """Who is given up: a trial below the median of others at the same time, or by successive
    halving."""
    storage: str = ""
    """URL of a database that Optuna knows, for many machines; empty is SQLite in the sweep's
    folder."""
    name: str = ""
    """Name of the sweep and its folder; empty makes one from the time."""
    resume: bool = False
    """Go on with the sweep called --name, or take part in it from another machine."""
    restarts: Annotated[int, COUNT] = 3
    """How often a trial that was killed is run again with the same settings."""
    engine: Literal["local", "ray"] = "local"
    """Where trials run: on this machine, or on a Ray cluster."""


@dataclass(frozen=True, kw_only=True)
class ShowArguments:
    """Tell how a sweep stands, and write its page."""

    name: tyro.conf.Positional[str]
    """The sweep's name."""
    storage: str = ""
    """URL of its database, if it has another than its own."""
    runs_dir: str = "runs"
    """Where its folder lies."""
    json: bool = False
    """Print all of it as one JSON object."""


def sweep(arguments: list[str]) -> int:
    """`stoker sweep`."""
    if arguments[:1] == ["show"]:
        return _show(arguments[1:])
    config, given = parse_train(arguments, "sweep", SweepArguments)
    _check(given)
    name = given.name or time.strftime("sweep-%Y%m%d-%H%M%S")
    folder = Path(config.run.runs_dir) / name
    if given.resume:
        plan, told = None, None
    else:
        plan, told = _plan(config, given, arguments)
        _make(folder)
    return _conduct(name, folder, plan, told, config, given, arguments)


def _conduct(
    name: str,
    folder: Path,
    plan: Plan | None,
    told: str | None,
    config: Config,
    given: SweepArguments,
    arguments: list[str],
) -> int:
    from stoker.sweep.conduct import Sweep  # late: they import Optuna
    from stoker.sweep.ledger import Ledger, identity, reached

    url, by = given.storage or _own_storage(folder, must_exist=plan is None), identity(folder)
    folder.mkdir(parents=True, exist_ok=True)  # of a machine that takes part
    with take_lock(folder, name), reached(url):
        if plan is not None:
            try:
                ledger = Ledger.begin(url, name, plan, given.restarts)
            except ConfigError:
                shutil.rmtree(folder)  # ours, and empty: the name is free for another try
                raise
        else:
            ledger = Ledger.load(url, name, given.restarts)
            _go_on(ledger, config, given, arguments, None if not given.storage else by)
        view = make_view(given.json)
        with closing(view), StopRequest(config.run.stop_deadline + _GRACE_S) as stop:
            if told is not None:
                view.says(told)
            engine = _engine(given, ledger.plan, view.says)
            running = Sweep(ledger, engine, folder, by, view, stop)
            running.run()
        _end(name, ledger, folder, given.json)
    if stop.signal is not None:
        print(f"Go on with: stoker sweep --name {name} --resume", file=sys.stderr)
        return 128 + stop.signal
    return 0


def _check(given: SweepArguments) -> None:
    problems = []
    cores = len(our_cores())
    for what, number, least in (
        ("trials", given.trials, 0),
        ("jobs", given.jobs, 0),
        ("seeds", given.seeds, 1),
        ("restarts", given.restarts, 0),
    ):
        if number < least:
            problems.append(f"{what} is {number}; it must be {least} or more.")
    if given.engine == "local" and given.jobs > cores:
        problems.append(f"jobs is {given.jobs}, and there are {cores} cores; each run needs one.")
    if given.name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", given.name):
        problems.append(
            f"name {given.name!r} cannot be a folder's name; use up to 80 letters, digits, '.', "
            "'_' and '-', beginning with a letter or digit."
        )
    if given.resume and not given.name:
        problems.append("resume goes on with a sweep; say which with --name.")
    if problems:
        raise ConfigError(problems)


def _plan(config: Config, given: SweepArguments, arguments: list[str]) -> tuple[Plan, str | None]:
    """What to search, and what there is to say of it."""
    settled = settings_of(["train", *arguments])
    problems, budget_s = [], None
    if given.budget and "timesteps" in settled:
        problems.append("budget and timesteps exclude each other: a seed trains as long or as far.")
    if given.budget or "timesteps" not in settled:
        try:
            budget_s = parse_seconds(given.budget or _BUDGET)
        except ValueError as error:
            problems.append(f"budget: {error}.")
    flat = config.flat()
    agents, flat["population"] = flat["population"], 1
    written = read_space_file(given.space) if given.space else default_space(flat["algo"])
    space = understand(written, config)
    twice = sorted({*space} & {*settled}) if given.space else []
    problems += [f"{name} is in the space and among the settings; keep one." for name in twice]
    space, told = capped(without(space, settled), len(our_cores()) // max(1, given.jobs))
    problems += _no_crowd(space, agents, given.seeds) if agents > 1 else []
    if not space and not problems:
        problems.append("Flags settle every setting of the space: nothing is left to search.")
    if problems:
        raise ConfigError(problems)
    if budget_s is not None:
        told_apart = {*settled, *space}
        usual = _WITHOUT_END if flat["algo"] == "dqn" else {"lr_schedule": "constant"}
        unsettled = {name: value for name, value in usual.items() if name not in told_apart}
        flat |= {"timesteps": ENDLESS, **unsettled}
    seeds = tuple(range(config.run.seed, config.run.seed + given.seeds))
    base = {**flat, "run_name": "", "runs_dir": "runs"}
    trials = given.trials or _TRIALS
    return Plan(base, space, seeds, budget_s, trials, given.pruner, agents), told


def _no_crowd(space: Space, agents: int, seeds: int) -> list[str]:
    """Why trials cannot be agents of a population."""
    problems = []
    if agents % seeds:
        problems.append(
            f"population is {agents}, and a trial has {seeds} seeds, each of which is an agent; "
            f"make it a multiple, such as {-(-agents // seeds) * seeds}."
        )
    apart = [name for name in space if name not in VARIED]
    if apart:
        problems.append(
            f"population: agents of one process cannot differ in {', '.join(apart)}; only in "
            f"{', '.join(VARIED)}. Search these alone, or leave population out."
        )
    return problems


def _own_storage(folder: Path, must_exist: bool) -> str:
    if must_exist and not (folder / _STORE_NAME).is_file():
        raise ConfigError(
            f"There is no sweep at {folder}: it has no {_STORE_NAME}. If its storage is elsewhere, "
            "say where with --storage."
        )
    return f"sqlite:///{folder.resolve() / _STORE_NAME}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError(
            f"{folder} exists already. Go on with it with --resume, or choose another --name."
        ) from error
    except OSError as error:
        raise ConfigError(f"Cannot make the folder {folder}: {error.strerror}.") from error


def _go_on(
    ledger: Ledger, config: Config, given: SweepArguments, arguments: list[str], by: str | None
) -> None:
    """Have a sweep that was begun go on as it was, with more trials if that is asked for."""
    said = {word.partition("=")[0][2:].replace("-", "_") for word in arguments if word[:2] == "--"}
    if said - _GOES_ON:
        again, _ = _plan(config, given, arguments)
        before, now = ledger.plan.as_json(), again.as_json()
        differ = [key for key in before if key != "trials" and before[key] != now[key]]
        if differ:
            raise ConfigError(
                f"A sweep goes on as it began, and {', '.join(differ)} would not be the same. "
                "Leave out all flags but --name, --resume, --trials and --jobs, or begin another."
            )
    if given.trials and given.trials < ledger.plan.trials:
        raise ConfigError(
            f"trials is {given.trials}, and the sweep was to have {ledger.plan.trials}; with "
            "--resume it can have more, not fewer."
        )
    if given.trials > ledger.plan.trials:
        ledger.extend(given.trials)
    ledger.mend(by)
    ledger.add_places()


def _engine(given: SweepArguments, plan: Plan, says: Any) -> Engine:
    if given.engine == "ray":
        from stoker.sweep.on_ray import RayEngine

        return RayEngine(given.jobs, plan.base["device"] != "cpu", says)
    from stoker.sweep.local import LocalEngine

    template = Job("trial", ("train",), Path("trial"), plan.base)
    options = Options(at_once=min(given.jobs, plan.trials), restarts=given.restarts)
    return LocalEngine(Premises([template] * plan.trials, options, says), _COMMAND)


def _end(name: str, ledger: Ledger, folder: Path, as_json: bool) -> None:
    """Write what came of it, and tell."""
    from stoker.sweep.results import ranked, summary, write_best
    from stoker.train.devices import find_device

    found = summary(name, ledger, folder)
    best = next(iter(ranked(ledger.rows())), None)
    on_gpu = find_device(str(ledger.plan.base["device"])).type == "cuda"
    try:
        if best is not None:
            write_best(folder, name, ledger.plan, best, on_gpu)
        found["page"], trouble = _write_page(folder, found)
    except OSError as error:
        raise StokerError(f"What was found could not be written: {error}.") from error
    if as_json:
        print(dumps(found))
    else:
        show_summary(found, trouble)


def _write_page(folder: Path, found: dict[str, Any]) -> tuple[str | None, str | None]:
    """Where the page is; or why there is none."""
    from stoker.cli.report import plotly_js
    from stoker.dashboard.sweep_page import sweep_page

    try:
        text = sweep_page(found, plotly_js())
    except StokerError as error:
        return None, str(error)
    write_atomically(folder / _PAGE_NAME, text)
    return str(folder / _PAGE_NAME), None


def _show(arguments: list[str]) -> int:
    given = parse(ShowArguments, arguments, "sweep", prog="stoker sweep show")
    folder = Path(given.runs_dir) / given.name
    from stoker.sweep.ledger import Ledger, reached

    url = given.storage or _own_storage(folder, must_exist=True)
    with reached(url):
        ledger = Ledger.load(url, given.name)
        folder.mkdir(parents=True, exist_ok=True)
        _end(given.name, ledger, folder, given.json)
    return 0
