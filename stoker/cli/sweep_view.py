"""What `stoker sweep` looks like: a table redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stoker.cli.figures import bar, figure
from stoker.cli.followed import Lines, Screen

if TYPE_CHECKING:
    from stoker.sweep.conduct import Board, Running

_BAR = 20
_SHOWN = 10
"""Trials of a table, the best first."""


class SweepLines(Lines):
    """A line for all that happens, and one for how it stands every few seconds."""

    every_s = 10.0

    def shows(self, board: Board) -> None:
        if self.due():
            self.says(_standing(board))


class SweepScreen(Screen):
    """One table of what runs and what is best; what happens is told above it."""

    def shows(self, board: Board) -> None:
        self.draws(draw(board))


def make_view(as_json: bool) -> SweepLines | SweepScreen:
    """A table if somebody is looking, else lines; on standard error if the outcome is JSON."""
    console = Console(stderr=as_json, highlight=False)
    return SweepScreen(console) if console.is_terminal else SweepLines(console)


def draw(board: Board) -> RenderableType:
    """What runs, and the best so far."""
    from stoker.sweep.results import ranked

    best = [row._asdict() for row in ranked(board.rows)[:_SHOWN]]
    tables: list[RenderableType] = [_running(board), Text(), _table(best, list(board.plan.space))]
    return Panel(Group(*tables), title=_standing(board), title_align="left", expand=False)


def _standing(board: Board) -> str:
    from stoker.sweep.results import counts, ranked

    found, best = counts(board.rows), next(iter(ranked(board.rows)), None)
    done = found["complete"] + found["pruned"]
    reward = "unknown" if best is None else f"{figure(best.value, '.1f')} (trial {best.number})"
    return (
        f"{done} of {board.plan.trials} trials done, {found['pruned']} of them pruned; "
        f"{len(board.running)} run here; best reward {reward}"
    )


def _running(board: Board) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("trial", "seed", "", "steps", "steps/s", "reward", "where"):
        table.add_column(column)
    for each in board.running:
        table.add_row(
            str(each.taken.number),
            f"{len(each.rewards) + 1} of {len(board.plan.seeds)}",
            ProgressBar(total=1.0, completed=each.course.share, width=_BAR),
            *_figures(each),
            each.process.where if each.process is not None else "waits",
        )
    return table


def _figures(each: Running) -> tuple[str, str, str]:
    course = each.course
    return (
        figure(course.env_steps or None, ",.0f"),
        figure(course.sps, ",.0f"),
        figure(each.reward, ".1f"),
    )


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("best", "reward", *names):
        table.add_column(column.replace("_", " "))
    for row in rows:
        drawn = (row["drawn"].get(name) for name in names)
        table.add_row(
            str(row["number"]), figure(row["value"], ".1f"), *(shown(value) for value in drawn)
        )
    return table


def shown(value: Any) -> str:
    """A setting in a few digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def show_summary(found: Mapping[str, Any], trouble: str | None) -> None:
    """How a sweep stands, on standard output."""
    console = Console(highlight=False, soft_wrap=True)
    complete = [row for row in found["rows"] if row["state"] == "complete"]
    complete.sort(key=lambda row: -row["value"])
    if complete:
        console.print(_table(complete[:_SHOWN], list(complete[0]["drawn"])))
    console.print(
        f"{found['name']}: {found['state']}; {found['done']} of {found['trials']} trials done, "
        f"{found['pruned']} of them pruned; {found['failed']} were killed or failed, and run again."
    )
    for name, share in found["importances"].items():
        console.print(f"  {name:<16} {bar(share, _BAR)} {share:.0%} of what decides the reward")
    if found["page"] is not None:
        console.print(f"Page: {found['page']}", markup=False)
    elif trouble is not None:
        console.print(f"There is no page: {trouble}", markup=False)
    if found["best_file"] is not None:
        console.print("Train with the best settings, on another seed:")
        after = found["unseen_seed"]
        console.print(f"  stoker train --config {found['best_file']} --seed {after}", markup=False)
