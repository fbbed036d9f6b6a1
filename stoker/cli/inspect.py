"""`stoker eval`, `stoker runs` and `stoker presets`: look, change nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stoker.cli.figures import duration, figure
from stoker.cli.flags import find_run, parse
from stoker.cli.output import clean_output
from stoker.config.numbers import counted
from stoker.config.presets import PRESETS
from stoker.config.written import COUNT
from stoker.errors import ConfigError
from stoker.runs.reader import RunSummary, list_runs
from stoker.runs.strict_json import dumps


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Measure a trained agent on environments and seeds of its own."""

    run: tyro.conf.Positional[str]
    """The run's name, or the path of its folder."""
    episodes: Annotated[int, COUNT] = 20
    """How many episodes."""
    checkpoint: str = "newest"
    """`newest`, `best`, or the name of one, such as step-000000100352."""
    agent: int | None = None
    """The number of an agent of a population; by default the one with the highest reward."""
    stochastic: bool = False
    """Sample actions as in training, instead of taking the most likely."""
    seed: int | None = None
    """Seed of the episodes; by default one that follows from the run's."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where the policy runs."""
    runs_dir: str = "runs"
    """Where run folders lie."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class RunsArguments:
    """List runs, newest last."""

    sort: Literal["updated", "name", "reward", "eval_reward", "sps", "env_steps", "wall_s"] = (
        "updated"
    )
    """The column to sort by, ascending."""
    runs_dir: str = "runs"
    """Where run folders lie."""
    json: bool = False
    """Print a JSON array."""


@dataclass(frozen=True, kw_only=True)
class PresetsArguments:
    """List the presets: sizes that go together, for `stoker train --preset NAME`."""

    json: bool = False
    """Print one JSON object."""


def presets(arguments: list[str]) -> int:
    """`stoker presets`."""
    given = parse(PresetsArguments, arguments, "presets")
    if given.json:
        print(dumps({name: preset.settings() for name, preset in PRESETS.items()}))
        return 0
    table = _table("preset", "envs", "steps", "total", "minibatch", "epochs", "network", "cores")
    for name, preset in PRESETS.items():
        table.add_row(
            name,
            f"{preset.n_envs:,}",
            f"{preset.n_steps:,}",
            f"{preset.n_envs * preset.n_steps:,}",
            f"{preset.batch_size:,}",
            str(preset.n_epochs),
            ",".join(map(str, preset.network_arch)),
            str(preset.cores),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for name, preset in PRESETS.items():
        console.print(f"[bold]{name:<12}[/] {preset.what_for}")
    return 0


def runs(arguments: list[str]) -> int:
    """`stoker runs`."""
    given = parse(RunsArguments, arguments, "runs")
    found = sorted(list_runs(Path(given.runs_dir)), key=lambda run: _sort_key(run, given.sort))
    if given.json:
        print(dumps([{**run._asdict(), "path": str(run.path)} for run in found]))
        return 0
    console = Console(highlight=False)
    if not found:
        console.print(f"No runs in {escape(given.runs_dir)}. `stoker train` makes one.")
        return 0
    table = _table("run", "state", "steps", "steps/s", "reward", "eval", "updated")
    for run in found:
        table.add_row(
            Text(run.name, overflow="fold"),
            run.state,
            figure(run.env_steps, ",.0f"),
            figure(run.sps, ",.0f"),
            figure(run.reward, ".1f"),
            figure(run.eval_reward, ".1f"),
            "unknown" if run.updated is None else f"{duration(time.time() - run.updated)} ago",
        )
    console.print(table)
    return 0


def evaluate(arguments: list[str]) -> int:
    """`stoker eval RUN`."""
    from stoker.train.inspect import evaluate_run

    given = parse(EvalArguments, arguments, "eval")
    if given.episodes < 1:
        raise ConfigError(f"episodes is {given.episodes}; it must be 1 or more.")
    if given.seed is not None and not 0 <= given.seed < 2**63:
        raise ConfigError(f"seed is {given.seed}; it must be 0 or more, and below 2**63.")
    path = find_run(given.run, given.runs_dir)
    with clean_output(given.json):
        checkpoint, agent, report = evaluate_run(
            path,
            episodes=given.episodes,
            checkpoint=given.checkpoint,
            agent=given.agent,
            seed=given.seed,
            device=given.device,
            deterministic=not given.stochastic,
        )
    if given.json:
        rows: dict[str, Any] = {
            "run": str(path),
            "checkpoint": checkpoint,
            "agent": agent,
            "mean_reward": report.mean_reward,
            "std_reward": report.std_reward,
            "episodes": len(report.returns),
            "unfinished": report.unfinished,
            "returns": report.returns,
            "lengths": report.lengths,
        }
        print(dumps(rows))
        return 0
    how = "sampled" if given.stochastic else "most likely"
    whose = checkpoint if agent is None else f"agent {agent} in {checkpoint}"
    print(
        f"{report.mean_reward:.2f} ± {report.std_reward:.2f}: mean reward of "
        f"{counted(len(report.returns), 'episode')} with the {how} actions of {whose}"
    )
    if report.unfinished:
        print(f"Without {counted(report.unfinished, 'episode')} that went past eval_max_steps.")
    return 0


def _sort_key(run: RunSummary, column: str) -> tuple[bool, Any]:
    """Runs for which a figure is unknown come first."""
    value = getattr(run, column)
    return (value is not None, value if value is not None else 0)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
