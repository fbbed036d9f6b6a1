"""`stoker doctor`: a minute of probes, then where a run's time would go and how long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stoker.cli.figures import duration
from stoker.cli.output import clean_output
from stoker.cli.train import parse_train, refuse_all_but_ppo
from stoker.runs.strict_json import dumps

if TYPE_CHECKING:
    from stoker.tune.doctor import Diagnosis

_MS = 1e3


def doctor(arguments: list[str]) -> int:
    """`stoker doctor`."""
    config, given = parse_train(arguments, "doctor")
    refuse_all_but_ppo(config, "doctor")
    from stoker.tune.doctor import diagnose  # late: `--help` is quick

    doing = Console(stderr=True, highlight=False)
    with clean_output(given.json) as answer:
        # Lines, as a thread that draws would be measured, too.
        found = diagnose(config, lambda what: doing.print(f"[dim]{what} ...[/]"))
        if answer is not None:
            print(dumps(as_object(found)), file=answer)
        else:
            _show(Console(highlight=False), found)
    return 0


def as_object(found: Diagnosis) -> dict[str, Any]:
    """For one object of JSON; null is unknown."""
    verdict, pieces, config = found.verdict, found.pieces, found.config
    env = pieces.env
    step = None
    if env is not None:
        step = {"wall_s": env.step_wall_s, "cpu_s": env.step_cpu_s, "spread_s": env.step_spread_s}
    return {
        "env": config.env.env,
        "timesteps": config.run.timesteps,
        "predicted_sps": found.predicted_sps,
        "steady_sps": verdict.sps,
        "predicted_wall_s": {str(steps): wall for steps, wall in found.predicted_wall_s.items()},
        "shares": verdict.shares,
        "ceiling": verdict.ceilings[verdict.limit],
        "ceilings": verdict.ceilings,
        "limit": verdict.limit,
        "advice": [each._asdict() for each in verdict.advice],
        "paragraph": verdict.paragraph,
        "findings": [{**each._asdict(), "sentence": each.sentence} for each in found.findings],
        "decisions": [each._asdict() for each in found.decisions],
        "probes": {
            "step": step,
            "inference_s": {str(n): took for n, took in pieces.inference_at.items()},
            "update_s": {str(rows): took for rows, took in pieces.update_at.items()},
            "copy_s": pieces.copy_s,
            "costs_s": [each.costs._asdict() for each in found.course.stretches],
            "begins_s": found.course.begins_s,
            "save_s": found.course.save_s,
            "shortened": found.shortened,
        },
        "memory": {**found.memory._asdict(), "total": found.memory.total},
        "took_s": found.took_s,
    }


def _show(console: Console, found: Diagnosis) -> None:
    table = Table.grid(padding=(0, 2))
    for decision in found.decisions:
        table.add_row(decision.what, Text.assemble((decision.chosen, "bold"), f"; {decision.why}"))
    for what, told in _probed(found):
        table.add_row(what, told)
    table.add_row("", "")
    walls = ", ".join(f"{n:,} in {duration(wall)}" for n, wall in found.predicted_wall_s.items())
    table.add_row("prediction", f"[bold]{found.predicted_sps:,.0f} steps/s[/]; steps: {walls}")
    table.add_row("verdict", Text(found.verdict.paragraph, overflow="fold"))
    console.print(f"[bold]{escape(found.config.env.env)}[/], looked at for {found.took_s:.0f} s")
    console.print(table)
    for finding in found.findings:
        console.print(f"[bold yellow]{finding.what}:[/]", escape(finding.sentence))
    if not found.findings:
        console.print("Nothing was found to be wrong with the machine.")


def _probed(found: Diagnosis) -> list[tuple[str, str]]:
    pieces = found.pieces
    rows = []
    if pieces.env is not None:
        wall, cpu = pieces.env.step_wall_s * _MS, pieces.env.step_cpu_s * _MS
        spread = pieces.env.step_spread_s * _MS
        rows.append(("a step", f"{wall:.3f} ± {spread:.3f} ms, {cpu:.3f} of them on a core"))
    decided = ", ".join(f"{n:,}: {took * _MS:.3f}" for n, took in pieces.inference_at.items())
    rows.append(("a decision", f"for so many at once, in ms: {decided}"))
    if pieces.copy_s is not None:
        rows.append(("a copy", f"{pieces.copy_s * _MS:.3f} ms, of all that is seen to the GPU"))
    updated = ", ".join(f"{n:,}: {took * _MS:.2f}" for n, took in pieces.update_at.items())
    rows.append(("an update", f"of so many rows, in ms: {updated}"))
    costs = found.course.stretches[-1].costs
    parts = {name: took for name, took in costs._asdict().items() if name != "overlapped"}
    told = ", ".join(f"{name} {1e6 * took:,.1f}" for name, took in parts.items())
    rows.append(("all in all", f"a step costs, in us: {told}"))
    return rows
