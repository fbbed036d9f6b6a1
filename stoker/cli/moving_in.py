"""`stoker import MODEL`: a model of Stable-Baselines3 becomes a run."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.markup import escape

from stoker.cli.flags import parse
from stoker.cli.output import clean_output
from stoker.cli.train import config_of, named_in, spelled_out, with_algorithm
from stoker.config.algorithms import DQNSettings, LearningSettings
from stoker.config.load import base_config, finish, overlay
from stoker.config.schema import (
    ComputeSettings,
    Config,
    EnvSettings,
    NetworkSettings,
    RunSettings,
)
from stoker.errors import ConfigError
from stoker.runs.strict_json import dumps

if TYPE_CHECKING:
    from stoker.runs.folder import RunFolder
    from stoker.train.sb3_settings import Origin


@dataclass(frozen=True, kw_only=True)
class ImportArguments:
    """Make a run of a model that Stable-Baselines3 saved: a PPO or DQN with an MLP policy.

    Settings are the model's own, as far as its file has them in numbers; flags go over them. No
    code in the file is run.
    """

    model: tyro.conf.Positional[Path]
    """What model.save() wrote, such as model.zip; it stands before all flags."""
    env: EnvSettings
    learning: LearningSettings
    network: NetworkSettings
    compute: ComputeSettings
    run: RunSettings
    normalize: Path | None = None
    """What a VecNormalize scaled by, as an .npz file of arrays (docs/moving-in.md)."""
    json: bool = False
    """Print one JSON object on standard output; all else goes to standard error."""


def import_model(arguments: list[str]) -> int:
    """`stoker import`."""
    arguments = spelled_out(arguments)
    if {"-h", "--help"} & set(arguments):
        _parsed(arguments, base_config(None, on_gpu=False))
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError("Name the model's file first: stoker import model.zip --env CartPole-v1")
    if "env" not in named_in(arguments):
        raise ConfigError(
            "Say what the model was trained on, as the file does not: --env CartPole-v1, or "
            "--env my_module:MyEnv."
        )
    from stoker.runs.sb3_stats import read_stats  # late: `--help` is quick
    from stoker.runs.sb3_zip import read_model
    from stoker.train.moving_in import take_in
    from stoker.train.sb3_settings import origin_of

    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--activation", "--normalize", "--update-ratio"):
        early.add_argument(flag)
    said = early.parse_known_args(arguments)[0]
    model = read_model(Path(arguments[0]))
    stats = None if said.normalize is None else read_stats(Path(said.normalize))
    origin = origin_of(model, said.activation, stats, _ratio(said.update_ratio))
    base, problems = overlay(
        base_config(None, on_gpu=False, algo=origin.settings["algo"]), origin.settings
    )
    given = _parsed(arguments, base)
    config = finish(config_of(given, arguments), base.minibatch, problems)
    with clean_output(given.json) as answer:
        folder = take_in(config, model, origin, stats)
        if answer is not None:
            print(dumps(_as_object(folder, origin)), file=answer)
        else:
            _show(folder, origin, model.name, named_in(arguments))
    return 0


def _ratio(said: str | None) -> float:
    """As the user says; what is no number is refused where all flags are read."""
    try:
        return DQNSettings.update_ratio if said is None else float(said)
    except ValueError:
        return DQNSettings.update_ratio


def _parsed(arguments: list[str], base: Config) -> ImportArguments:
    kind = with_algorithm(ImportArguments, base)
    groups = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    given: ImportArguments = parse(
        kind, arguments, "import", default=kind(model=Path("model.zip"), **groups)
    )
    return given


def _as_object(folder: RunFolder, origin: Origin) -> dict[str, object]:
    return {
        "run": str(folder.path),
        "env_steps": origin.env_steps,
        "settings": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in origin.settings.items()
        },
        "unread": origin.unread,
        "changed": origin.changed,
    }


def _show(folder: RunFolder, origin: Origin, name: str, said: set[str]) -> None:
    console, settings = Console(highlight=False, soft_wrap=True, emoji=False), origin.settings
    layers = "-".join(map(str, settings["network_arch"]))
    if settings["critic_arch"]:
        layers += f", the critic {'-'.join(map(str, settings['critic_arch']))}"
    what = f"{settings['algo'].upper()} after {origin.env_steps:,} steps"
    console.print(f"{escape(name)}: {what}; layers {layers}, {settings['activation']}")
    unread = [setting for setting in origin.unread if setting not in said]
    if unread:
        console.print(
            f"{', '.join(unread)}: not there as plain numbers (code is not run), so it is as "
            "Stoker has it."
        )
    for sentence in origin.changed:
        console.print(escape(sentence))
    place = escape(str(folder.path))
    console.print(f"It is the run {place}:")
    more = max(2 * origin.env_steps, 100_000)
    for line in (f"stoker eval {place}", f"stoker resume {place} --timesteps {more}"):
        console.print(f"  {line}")
