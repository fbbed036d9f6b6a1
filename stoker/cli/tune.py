"""`stoker tune`: searches settings by measurement, and keeps the best for `--preset auto`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stoker.cli.output import clean_output
from stoker.cli.train import TrainArguments, parse_train, refuse_all_but_ppo
from stoker.errors import ConfigError, StokerError
from stoker.runs.strict_json import dumps

if TYPE_CHECKING:
    from stoker.tune.tuning import Tuned


@dataclass(frozen=True, kw_only=True)
class TuneArguments(TrainArguments):
    """Search for settings with which this job is quicker on this machine, by measurement.

    All flags of `stoker train` say what the job is. What was found is kept for `--preset auto`.
    """

    allow_learning: bool = False
    """Also try settings that change what is learned: more or fewer environments with rollouts of
    the same total, other minibatches, other precision."""
    until_reward: float | None = None
    """Look for the shortest time to this mean reward, instead of the most steps a second."""


def tune(arguments: list[str]) -> int:
    """`stoker tune`."""
    config, given = parse_train(arguments, "tune", TuneArguments)
    refuse_all_but_ppo(config, "tune")
    wanted = given.until_reward
    if wanted is not None and not math.isfinite(wanted):
        raise ConfigError(f"until_reward is {wanted:g}; it must be a number.")
    from stoker.train.tuned import keep  # late: `--help` is quick
    from stoker.tune.tuning import tune as search

    doing = Console(stderr=True, highlight=False, soft_wrap=True)
    with clean_output(given.json) as answer:
        found = search(
            config,
            given.allow_learning,
            given.until_reward,
            lambda what: doing.print(f"[dim]{escape(what)}[/]"),
        )
        place, trouble = None, f"No candidate came to a mean reward of {wanted} in the time given."
        if found.trials[0][1].measured > 0:
            try:
                place = keep(config.env.env, found.spec, found.config.flat(), found.best)
            except OSError as error:
                trouble = f"What was found could not be kept for --preset auto: {error}."
        if answer is not None:
            print(dumps(as_object(found, place)), file=answer)
        else:
            _show(Console(highlight=False), found, wanted is not None, place)
    if place is None:
        raise StokerError(trouble)
    return 130 if found.interrupted else 0


def as_object(found: Tuned, place: Path | None) -> dict[str, Any]:
    """For one object of JSON."""
    return {
        "env": found.config.env.env,
        "best": dict(found.best),
        "measured": found.trials[0][1].measured,
        "base": found.base.measured,
        "gain": found.gain if math.isfinite(found.gain) else None,
        "trials": [
            {"settings": dict(one), "predicted": trial.predicted, "measured": trial.measured}
            for one, trial in found.trials
        ],
        "considered": found.considered,
        "pruned": found.pruned,
        "failed": [{"settings": dict(one), "why": why} for one, why in found.failed],
        "interrupted": found.interrupted,
        "preset": None if place is None else str(place),
        "took_s": found.took_s,
    }


def _show(console: Console, found: Tuned, to_a_reward: bool, place: Path | None) -> None:
    names = list(found.best)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name.replace("_", " "))
    table.add_column("predicted steps/s", justify="right")
    table.add_column("seconds to reward" if to_a_reward else "measured", justify="right")
    for one, trial in found.trials:
        table.add_row(
            *(str(one.get(name, "")) for name in names),
            f"{trial.predicted:,.0f}",
            _measured(trial.measured, to_a_reward),
        )
    console.print(table)
    console.print(
        f"\n{len(found.trials)} of {found.considered} candidates measured in {found.took_s:.0f} s; "
        f"the best is {found.gain:.2f} times as quick as the job as it was."
    )
    if place is not None:
        console.print(f"Kept in {escape(str(place))}: use it with [bold]--preset auto[/].")


def _measured(score: float, to_a_reward: bool) -> str:
    if not to_a_reward:
        return f"{score:,.0f}"
    return f"{1 / score:.1f}" if score else "not there in time"
