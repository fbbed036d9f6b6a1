"""What a run looks like while it trains: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stoker.cli.figures import WIDTH, duration, sparkline
from stoker.config.numbers import counted
from stoker.config.schema import Config
from stoker.monitor.verdict import Verdict
from stoker.runs.strict_json import dumps
from stoker.train.overlap import Decision
from stoker.train.population import Standing, spread
from stoker.train.progress import Progress
from stoker.train.start import Audience, Outcome

_PHASES = {
    "env": ("environments", "green"),
    "inference": ("inference", "cyan"),
    "store": ("storing", "blue"),
    "wait": ("waiting for a rollout", "green"),
    "update": ("update", "magenta"),
    "eval": ("evaluation", "yellow"),
    "save": ("saving", "red"),
    "log": ("logging", "bright_black"),
    "other": ("other", "white"),
}
_LINE_EVERY_S = 5.0


def make_audience(as_json: bool) -> Audience:
    """A live view if somebody is looking, else lines; on standard error if the outcome is JSON."""
    console = Console(stderr=as_json, highlight=False)
    return LiveView(console) if console.is_terminal else PlainLines(console)


class PlainLines(Audience):
    """A line every few seconds, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last_line = -_LINE_EVERY_S

    def begins(self, config: Config, decisions: list[Decision], path: Path | None) -> None:
        self.console.print(_describe_start(config, decisions, path))

    def progresses(self, progress: Progress) -> bool | None:
        now = time.monotonic()
        if progress.decision is not None:
            self.console.print(_describe_decisions([progress.decision]))
        if now - self._last_line < _LINE_EVERY_S and progress.iteration < progress.n_iterations:
            return None
        self._last_line = now
        shares = "  ".join(
            f"{_PHASES[name][0]} {share:.0%}" for name, share in _ordered(progress.shares)
        )
        self.console.print(
            f"{progress.env_steps:,} of {progress.timesteps:,} steps  {_reward(progress.metrics)}  "
            f"{progress.sps:,.0f} steps/s  {shares}",
            soft_wrap=True,
        )
        return None

    def ends(self, outcome: Outcome) -> None:
        self.console.print(_describe_end(outcome))


class LiveView(Audience):
    """Progress with time left, reward, steps/s and where the time goes, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._rewards: deque[float] = deque(maxlen=2000)
        self._agents = 1

    def begins(self, config: Config, decisions: list[Decision], path: Path | None) -> None:
        self._agents = config.run.population
        self.console.print(_describe_start(config, decisions, path))
        self._live.start()

    def progresses(self, progress: Progress) -> bool | None:
        reward = progress.metrics.get("rollout/ep_rew_mean")
        if reward is not None:
            self._rewards.append(reward)
        if progress.decision is not None:
            self.console.print(_describe_decisions([progress.decision]))
        self._live.update(self._draw(progress))
        return None

    def leaves(self) -> None:
        self._live.stop()

    def ends(self, outcome: Outcome) -> None:
        self.console.print(_describe_end(outcome))

    def _draw(self, progress: Progress) -> RenderableType:
        done = min(1.0, progress.env_steps / progress.timesteps)
        steps_left = self._agents * (progress.timesteps - progress.env_steps)
        left = steps_left / max(progress.sps, 1e-9)
        table = Table.grid(padding=(0, 2))
        table.add_row(
            "progress",
            ProgressBar(total=1.0, completed=done, width=WIDTH),
            f"{done:.0%}, {duration(max(0.0, left))} left",
        )
        table.add_row("reward", Text(sparkline(self._rewards)), _reward(progress.metrics))
        table.add_row("time goes to", _phase_bar(progress.shares), f"{progress.sps:,.0f} steps/s")
        steps = f"{progress.env_steps:,} of {progress.timesteps:,} steps"
        return Panel(
            Group(table, _legend(progress.shares)), title=steps, title_align="left", expand=False
        )


def outcome_json(outcome: Outcome) -> str:
    """The outcome as one JSON object."""
    reward = None if outcome.evaluation is None else outcome.evaluation.mean_reward
    fields: dict[str, Any] = {
        "state": outcome.state,
        "env_steps": outcome.env_steps,
        "wall_s": outcome.wall_s,
        "sps": outcome.sps,
        "reward": outcome.reward,
        "eval_reward": reward,
        "shares": outcome.shares,
        "gpu": outcome.gpu or None,
        "verdict": None if outcome.verdict is None else _verdict_json(outcome.verdict),
        "run": None if outcome.path is None else str(outcome.path),
        "population": _population_json(outcome.standings),
        "metrics": outcome.metrics,
    }
    return dumps(fields)


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {**verdict._asdict(), "advice": [each._asdict() for each in verdict.advice]}


def _population_json(standings: list[Standing]) -> dict[str, Any] | None:
    if not standings:
        return None
    return {
        "agents": len(standings),
        "best": standings[0]._asdict(),
        "reward": spread(standings)._asdict(),
    }


def _describe_start(config: Config, decisions: list[Decision], path: Path | None) -> RenderableType:
    algo = config.learning.algo.upper()
    title = f"[bold]{algo}[/] on [bold]{escape(config.env.env)}[/], {config.run.timesteps:,} steps"
    table = _describe_decisions(decisions)
    if path is not None:
        table.add_row("run", Text(str(path), "bold", overflow="fold"))
    return Group(Text.from_markup(title), table)


def _describe_decisions(decisions: list[Decision]) -> Table:
    table = Table.grid(padding=(0, 2))
    for decision in decisions:
        table.add_row(decision.what, Text.assemble((decision.chosen, "bold"), f"; {decision.why}"))
    return table


def _describe_end(outcome: Outcome) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    report, trained = outcome.evaluation, outcome.metrics.get("rollout/ep_rew_mean")
    if report is not None and report.returns:
        reward = f"{report.mean_reward:.1f} ± {report.std_reward:.1f}"
        episodes = counted(len(report.returns), "evaluation")
        best = " of the best agent" if outcome.standings else ""
        table.add_row("reward", f"[bold]{reward}[/], mean of {episodes}{best}")
    if report is not None and report.unfinished:
        unfinished = counted(report.unfinished, "evaluation episode")
        table.add_row("", f"{unfinished} did not end in time")
    whose = ", mean of the agents" if outcome.standings else ""
    table.add_row(
        "in training",
        "unknown: no episode ended"
        if trained is None
        else f"{trained:.1f}, last 100 episodes{whose}",
    )
    for what, told in _describe_agents(outcome.standings):
        table.add_row(what, told)
    speed = "unknown" if outcome.sps is None else f"{outcome.sps:,.0f} steps/s"
    each = " of each agent" if outcome.standings else ""
    took = f"{outcome.env_steps:,} steps{each} in {duration(outcome.wall_s)}"
    table.add_row("speed", f"[bold]{speed}[/], {took}{_gpu(outcome.gpu)}")
    table.add_row("time went to", _phase_bar(outcome.shares))
    table.add_row("", _legend(outcome.shares))
    if outcome.verdict is not None:
        table.add_row("verdict", Text(outcome.verdict.paragraph, overflow="fold"))
    if outcome.path is not None:
        table.add_row("run", Text(str(outcome.path), overflow="fold"))
        again = "eval" if outcome.state == "finished" else "resume"
        # A name alone would be looked for in runs.
        path = outcome.path if len(outcome.path.parts) > 1 else f"./{outcome.path}"
        for what, command in (("next", again), ("", "report")):
            table.add_row(what, Text(f"stoker {command} {path}", "bold", overflow="fold"))
    return Panel(table, title=outcome.state, title_align="left", expand=False)


def _describe_agents(standings: list[Standing]) -> list[tuple[str, str]]:
    """The rows of a table that say who is the best, and how far apart the agents are."""
    if not standings:
        return []
    best, rewards = standings[0], spread(standings)
    if best.reward is None:
        return [("best agent", "unknown: no episode ended")]
    settings = "".join(f", {name} {value:g}" for name, value in best.settings.items())
    found = ", ".join(f"{which} {reward:.1f}" for which, reward in rewards._asdict().items())
    return [
        ("best agent", f"[bold]number {best.agent}[/], seed {best.seed}{settings}"),
        (counted(len(standings), "agent"), found),
    ]


def _legend(shares: dict[str, float]) -> Text:
    return Text("  ").join(
        Text.assemble((_PHASES[name][0], _PHASES[name][1]), f" {share:.0%}")
        for name, share in _ordered(shares)
    )


def _ordered(shares: dict[str, float]) -> list[tuple[str, float]]:
    """Phases in the order of the legend, without those below a hundredth."""
    return [(name, shares[name]) for name in _PHASES if shares.get(name, 0.0) >= 0.01]


def _phase_bar(shares: dict[str, float]) -> Text:
    bar, drawn, reached = Text(), 0, 0.0
    for name, share in _ordered(shares):
        reached += share
        until = min(WIDTH, round(reached * WIDTH))
        bar.append("█" * (until - drawn), _PHASES[name][1])
        drawn = until
    return bar


def _gpu(means: dict[str, float]) -> str:
    """How busy the GPU was, and how much of it, where that is known: for beside steps/s."""
    if "busy" not in means:
        return ""
    active = f", {means['sm_active']:.0%} of its SMs active" if "sm_active" in means else ""
    return f"; GPU {means['busy']:.0%} busy{active}"


def _reward(metrics: dict[str, float]) -> str:
    reward, best = metrics.get("rollout/ep_rew_mean"), metrics.get("population/best")
    if reward is None:
        return "reward unknown"
    return f"reward {reward:.1f}" + ("" if best is None else f", best {best:.1f}")
