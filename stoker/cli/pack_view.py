"""What `stoker pack` looks like: a table redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stoker.cli.figures import figure
from stoker.cli.followed import Lines, Screen
from stoker.jobs.entry import Board, Entry
from stoker.jobs.report import Report

_BAR = 20
_COLOURS = {
    "training": "green",
    "finished": "bold green",
    "failed": "bold red",
    "stopped": "yellow",
}


class PackLines(Lines):
    """A line for all that happens, and one for each job every few seconds."""

    def shows(self, board: Board) -> None:
        if not self.due():
            return
        for entry in board.entries:
            if entry.state == "training":
                self.says(
                    f"{entry.job.name}: {_steps(entry)} steps, {_speed(entry)}, {_reward(entry)}"
                )
        self.says(_together(board))

    def ends(self, entries: Sequence[Entry], report: Report) -> None:
        for entry in entries:
            self.says(f"{entry.job.name}: {entry.state}, {_steps(entry)} steps, {_reward(entry)}")
        for line in _summary(report):
            self.says(line)


class PackScreen(Screen):
    """One table of all jobs; what happens is told above it."""

    def shows(self, board: Board) -> None:
        self.draws(draw(board))

    def ends(self, entries: Sequence[Entry], report: Report) -> None:
        self.close()
        told = Group(_table(entries), *(Text(line) for line in _summary(report)))
        self.console.print(Panel(told, title=report.state, title_align="left", expand=False))


def make_view(as_json: bool) -> PackLines | PackScreen:
    """A table if somebody is looking, else lines; on standard error if the outcome is JSON."""
    console = Console(stderr=as_json, highlight=False)
    return PackScreen(console) if console.is_terminal else PackLines(console)


def draw(board: Board) -> RenderableType:
    """All jobs, and what they come to."""
    inside = Group(_table(board.entries), Text(_together(board)))
    training = sum(entry.state == "training" for entry in board.entries)
    title = f"{training} of {len(board.entries)} jobs train"
    return Panel(inside, title=title, title_align="left", expand=False)


def _table(entries: Sequence[Entry]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("job", "state", "", "steps", "steps/s", "reward", "cores", "restarts"):
        table.add_column(column)
    for entry in entries:
        table.add_row(
            escape(entry.job.name),
            Text(entry.state, _COLOURS.get(entry.state, "")),
            ProgressBar(total=1.0, completed=_done(entry), width=_BAR),
            _steps(entry),
            figure(_status(entry, "sps"), ",.0f"),
            figure(_status(entry, "rollout/ep_rew_mean"), ".1f"),
            ",".join(map(str, entry.cores)),
            str(entry.restarts),
        )
    return table


def _status(entry: Entry, name: str) -> float | None:
    value = None if entry.seen is None else entry.seen.status.get(name)
    return value if isinstance(value, int | float) else None


def _done(entry: Entry) -> float:
    steps, wanted = _status(entry, "env_steps"), _status(entry, "timesteps")
    return min(1.0, steps / wanted) if steps and wanted else 0.0


def _steps(entry: Entry) -> str:
    return figure(_status(entry, "env_steps"), ",.0f")


def _speed(entry: Entry) -> str:
    return figure(_status(entry, "sps"), ",.0f", " steps/s")


def _reward(entry: Entry) -> str:
    evaluated = _status(entry, "eval/mean_reward")
    reward = _status(entry, "rollout/ep_rew_mean") if evaluated is None else evaluated
    return f"reward {figure(reward, '.1f')}"


def _together(board: Board) -> str:
    rates = [_status(entry, "sps") for entry in board.entries if entry.state == "training"]
    known = [rate for rate in rates if rate is not None]
    total = sum(known) if known else None
    busy = None if board.gpu is None else board.gpu.busy
    active = None if board.gpu is None else board.gpu.sm_active
    return (
        f"together {figure(total, ',.0f', ' steps/s')}, one alone "
        f"{figure(board.alone_sps, ',.0f', ' steps/s')}; GPU busy {figure(busy, '.0%')}, "
        f"SM active {figure(active, '.0%')}"
    )


def _summary(report: Report) -> list[str]:
    gpu, alone = report.fields["gpu"] or {}, report.fields["alone_gpu"] or {}
    lines = [report.verdict]
    if gpu or alone:
        lines.append(
            f"GPU busy {figure(gpu.get('busy'), '.0%')} (one alone "
            f"{figure(alone.get('busy'), '.0%')}), SM active "
            f"{figure(gpu.get('sm_active'), '.0%')} (one alone "
            f"{figure(alone.get('sm_active'), '.0%')})."
        )
    for row in report.fields["jobs"]:
        if row["state"] != "finished":
            why = f": {row['why']}" if row["why"] else ""
            again = f"; `stoker resume {row['run']}`" if row["env_steps"] else ""
            lines.append(f"{row['name']} {row['state']}{why} (log {row['log']}{again}).")
    return [*lines, f"Report: {report.fields['pack']}/report.json"]
