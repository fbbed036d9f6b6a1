"""From a config to a finished run, and from a stopped run onwards."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from stoker.config.load import from_flat
from stoker.config.schema import Config
from stoker.errors import CheckpointError, EnvError, MemoryShortError, RunError, WorkerError
from stoker.monitor.verdict import Verdict
from stoker.runs import checkpoint as checkpoints
from stoker.runs.checkpoint import Checkpoint
from stoker.runs.folder import RunFolder
from stoker.runs.lineage import write_lineage
from stoker.runs.reader import summarise
from stoker.train import loop, spec_json
from stoker.train.build import build
from stoker.train.evaluate import EvalReport
from stoker.train.overlap import Decision
from stoker.train.parts import Parts
from stoker.train.population import Standing
from stoker.train.progress import Counters, Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.sources import EnvSource


class Outcome(NamedTuple):
    """How a run ended."""

    config: Config
    state: str  # finished or stopped
    signal: int | None
    env_steps: int
    wall_s: float
    sps: float | None
    shares: dict[str, float]
    metrics: dict[str, float]
    evaluation: EvalReport | None
    path: Path | None
    standings: list[Standing]
    """The agents of a population, best first; of one alone, none."""
    gpu: dict[str, float]
    """Means over the run of what is known of the GPU: `busy`, `sm_active`, `power_w` and so on."""
    verdict: Verdict | None
    """What its time went to, and what would change that; None where that is not known."""
    unsaved: str | None
    """Why the state that it ended in could not be saved; None where it was, or nobody wants it."""

    @property
    def reward(self) -> float | None:
        """The evaluated mean reward, or that of the last training episodes; the best agent's."""
        trained = self.metrics.get("population/best", self.metrics.get("rollout/ep_rew_mean"))
        return self.metrics.get("eval/mean_reward", trained)


class Audience:
    """Whoever follows a run; the default hears and does nothing."""

    def begins(self, config: Config, decisions: list[Decision], path: Path | None) -> None:
        """Called once, when everything is built."""

    def progresses(self, progress: Progress) -> bool | None:
        """Called after every logged iteration; False stops the run."""

    def ends(self, outcome: Outcome) -> None:
        """Called when the run has ended by itself or was stopped, not when it failed."""

    def leaves(self) -> None:
        """Called when the run is over, however it ended: put the terminal back in order."""


def train(
    config: Config, env: EnvSource | None = None, audience: Audience | None = None
) -> Outcome:
    """Train a new run, in a folder of its own, to its end."""
    if config.run.run_name and (Path(config.run.runs_dir) / config.run.run_name).exists():
        RunFolder.create(Path(config.run.runs_dir), config.run.run_name)  # raises, before we build
    parts = build(config, env)
    try:
        folder = open_folder(parts)
        with folder.lock():
            return conduct(Session(parts, folder), audience or Audience())
    finally:
        parts.close()


def open_folder(parts: Parts, parent: str | None = None, again: bool = False) -> RunFolder:
    """A new folder for a run of `parts`, with what is known before the first step.

    Where it is made `again`, its name has a number if it is taken.
    """
    run = parts.config.run
    runs_dir = Path(run.runs_dir)
    if run.run_name and not again:
        folder = RunFolder.create(runs_dir, run.run_name)
    else:
        folder = RunFolder.create_unnamed(runs_dir, run.run_name or _name_of(parts.config))
    run = dataclasses.replace(run, run_name=folder.name)
    parts.config = dataclasses.replace(parts.config, run=run)
    flat = parts.config.flat()
    try:
        folder.write_config(flat)
        write_lineage(folder, parent=parent, config=flat, spaces=spec_json.encode(parts.pool.spec))
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)  # the name is free again
        raise RunError(
            f"Cannot write to the run folder {folder.path}: {error.strerror}. Make room there, or "
            "choose another place with --runs-dir."
        ) from error
    return folder


def resume(path: Path, audience: Audience | None = None, timesteps: int | None = None) -> Outcome:
    """Continue the run at `path` from its newest valid checkpoint, to its end or to `timesteps`."""
    folder = RunFolder.open(path)
    if summarise(path).state == "running":  # also where the file system knows no locks
        raise RunError(f"The run {folder.name} is still running; stop it before resuming it.")
    with folder.lock():
        flat = folder.read_config()
        config = from_flat(flat if timesteps is None else {**flat, "timesteps": timesteps})
        _, saved = checkpoints.load_newest(folder.checkpoints)
        _refuse_if_done(folder, config, Counters(**saved.state["counters"]))
        parts = build(config)
        try:
            session = Session(parts, folder)
            check_spaces(saved, parts)
            session.restore(saved)
            folder.write_config(config.flat())
            return conduct(session, audience or Audience())
        finally:
            parts.close()


def conduct(session: Session, audience: Audience, own_process: bool = True) -> Outcome:
    """Run `session` to its end: watch for signals, evaluate, save, and leave a true status.

    In a process that is not `own_process` no signal ends it.
    """
    deadline = session.config.run.stop_deadline if own_process else None
    state = "failed"
    try:
        with StopRequest(deadline) as stop:
            audience.begins(session.config, session.parts.decisions, session.where)
            session.write_status("running")
            session.start_clocks()
            session.begin_timeline()
            state = _run(session, audience, stop)
            outcome = _outcome(session, state, stop)
    except (EnvError, WorkerError, MemoryShortError):
        session.save_boundary()
        raise
    finally:
        try:
            session.write_status(state)
            session.close()
        finally:
            audience.leaves()  # a terminal without a cursor is no use to anybody
    audience.ends(outcome)
    return outcome


def _run(session: Session, audience: Audience, stop: StopRequest) -> str:
    clock = session.parts.clock
    state = loop.run(session, audience.progresses, stop)
    with clock.phase("save"):
        session.save()  # before the evaluation, which may take long or fail
    if state == "finished":
        with clock.phase("eval"):
            session.evaluate(stop)
        with clock.phase("save"):
            session.save()  # again, if it turned out to be the best
    session.hear_of_checkpoint(wait=True)  # while whoever is asked to stop has a deadline
    return state


def _outcome(session: Session, state: str, stop: StopRequest) -> Outcome:
    return Outcome(
        session.config,
        state,
        stop.signal,
        session.counters.env_steps,
        session.wall_s,
        session.sps,
        session.parts.clock.shares(),
        session.metrics,
        session.last_eval,
        session.where,
        session.parts.standings(),
        session.parts.watch.overall() if session.parts.watch else {},
        session.judge(),
        session.unsaved,
    )


def _name_of(config: Config) -> str:
    env = re.sub(r"[^A-Za-z0-9.-]+", "-", config.env.env).strip("-.") or "env"
    return f"{env[:60]}-{config.learning.algo}-s{config.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _refuse_if_done(folder: RunFolder, config: Config, counters: Counters) -> None:
    if counters.env_steps >= config.run.timesteps:
        raise RunError(
            f"The run {folder.name} has {counters.env_steps:,} steps already, and was to have "
            f"{config.run.timesteps:,}. Give it more: stoker resume {folder.path} --timesteps "
            f"{2 * counters.env_steps}"
        )


def check_spaces(saved: Checkpoint, parts: Parts) -> None:
    """Refuse to go on with an environment that is no longer what it was."""
    before, now = spec_json.decode(saved.state["spec"]), parts.pool.spec
    if dataclasses.replace(before, name=now.name) != now:
        raise CheckpointError(
            f"The environment {now.name} has changed since the checkpoint was saved: its spaces "
            f"were {before} and are {now}. Restore it, or start a new run."
        )
