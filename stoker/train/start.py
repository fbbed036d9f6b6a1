"""From a config to a finished run, and from a stopped run onwards."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import NamedTuple

from stoker.config.load import from_flat
from stoker.config.schema import Config
from stoker.errors import CheckpointError, RunError
from stoker.runs import checkpoint as checkpoints
from stoker.runs.folder import RunFolder
from stoker.runs.lineage import write_lineage
from stoker.runs.reader import summarise
from stoker.train import loop
from stoker.train.build import Decision, EnvSource, Parts, build
from stoker.train.evaluate import EvalReport
from stoker.train.session import Progress, Session
from stoker.train.signals import StopRequest


class Outcome(NamedTuple):
    """How a run ended."""

    config: Config
    state: str  # finished or stopped
    signal: int | None
    env_steps: int
    wall_s: float
    sps: float
    shares: dict[str, float]
    metrics: dict[str, float]
    evaluation: EvalReport | None
    path: Path | None

    @property
    def reward(self) -> float | None:
        """The evaluated mean reward, or that of the last training episodes."""
        trained = self.metrics.get("rollout/ep_rew_mean")
        return self.metrics.get("eval/mean_reward", trained)


class Audience:
    """Whoever follows a run; the default hears and does nothing."""

    def begins(self, config: Config, decisions: list[Decision], path: Path | None) -> None:
        """Called once, when everything is built."""

    def progresses(self, progress: Progress) -> bool | None:
        """Called after every logged iteration; False stops the run."""

    def ends(self, outcome: Outcome) -> None:
        """Called when the run has ended by itself or was stopped, not when it failed."""


def train(
    config: Config, env: EnvSource | None = None, audience: Audience | None = None
) -> Outcome:
    """Train a new run, in a folder of its own, to its end."""
    parts = build(config, env)
    try:
        folder = open_folder(parts)
    except BaseException:
        parts.close()
        raise
    return conduct(Session(parts, folder), audience or Audience())


def open_folder(parts: Parts) -> RunFolder:
    """A new folder for a run of `parts`, with what is known before the first step."""
    run = parts.config.run
    name = run.run_name or _name_of(parts.config)
    folder = RunFolder.create(Path(run.runs_dir), name)
    parts.config = dataclasses.replace(parts.config, run=dataclasses.replace(run, run_name=name))
    flat = parts.config.flat()
    folder.write_config(flat)
    write_lineage(folder, parent=None, config=flat, spaces=dataclasses.asdict(parts.pool.spec))
    return folder


def resume(path: Path, audience: Audience | None = None, timesteps: int | None = None) -> Outcome:
    """Continue the run at `path` from its newest valid checkpoint, to its end or to `timesteps`."""
    folder = RunFolder.open(path)
    _refuse_if_running(folder)
    config = from_flat(folder.read_config())
    if timesteps is not None:
        config = dataclasses.replace(
            config, run=dataclasses.replace(config.run, timesteps=timesteps)
        )
    _, saved = checkpoints.load_newest(folder.checkpoints)
    parts = build(config)
    try:
        session = Session(parts, folder)
        _check_spaces(saved.state.get("spec"), parts)
        session.restore(saved)
    except BaseException:
        parts.close()
        raise
    if timesteps is not None:
        folder.write_config(config.flat())
    return conduct(session, audience or Audience())


def conduct(session: Session, audience: Audience, close: bool = True) -> Outcome:
    """Run `session` to its end: watch for signals, evaluate, save, and leave a true status.

    `close` ends its environments too.
    """
    config, stop = session.config, StopRequest(session.config.run.stop_deadline)
    state = "failed"
    try:
        audience.begins(config, session.parts.decisions, session.where)
        session.write_status("running")
        with stop:
            state = loop.run(session, audience.progresses, stop)
            with session.parts.clock.phase("save"):
                session.save()
            if state == "finished":
                with session.parts.clock.phase("eval"):
                    session.evaluate()
        outcome = Outcome(
            config,
            state,
            stop.signal,
            session.counters.env_steps,
            session.wall_s,
            session.sps,
            session.parts.clock.shares(),
            session.metrics,
            session.last_eval,
            session.where,
        )
    finally:
        session.write_status(state)
        session.close()
        if close:
            session.parts.close()
    audience.ends(outcome)
    return outcome


def _name_of(config: Config) -> str:
    env = re.sub(r"[^A-Za-z0-9.-]+", "-", config.env.env).strip("-.") or "env"
    return f"{env[:60]}-ppo-s{config.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _refuse_if_running(folder: RunFolder) -> None:
    if summarise(folder.path).state == "running":
        raise RunError(
            f"The run {folder.name} is still running (process {folder.read_status().get('pid')}); "
            "stop it before resuming it."
        )


def _check_spaces(saved: object, parts: Parts) -> None:
    now = dataclasses.asdict(parts.pool.spec)
    if saved is not None and _plain(saved) != _plain(now):
        raise CheckpointError(
            f"The environment {parts.pool.spec.name} has changed since the checkpoint was saved: "
            f"its spaces were {saved} and are {now}. Restore it, or start a new run."
        )


def _plain(spec: object) -> object:
    """A spec as JSON leaves it: tuples as lists."""
    if isinstance(spec, dict):
        return {key: _plain(value) for key, value in spec.items()}
    return [_plain(item) for item in spec] if isinstance(spec, (list, tuple)) else spec
