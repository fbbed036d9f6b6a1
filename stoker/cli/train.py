"""`stoker train` and `stoker resume`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import tyro

from stoker.cli.flags import find_run, parse
from stoker.cli.output import clean_output
from stoker.cli.screen import make_audience, outcome_json
from stoker.config.algorithms import LearningSettings
from stoker.config.load import FindTuned, finish, layers
from stoker.config.names import ELSEWHERE, find_field
from stoker.config.schema import (
    ComputeSettings,
    Config,
    EnvSettings,
    NetworkSettings,
    RunSettings,
)
from stoker.config.written import COUNT, MAPPING
from stoker.errors import ConfigError
from stoker.runs.folder import RunFolder

if TYPE_CHECKING:
    from stoker.train.start import Outcome


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Train an agent.

    A flag beats the --config file, which beats the --preset, which beats the device's defaults.
    """

    env: EnvSettings
    learning: LearningSettings
    network: NetworkSettings
    compute: ComputeSettings
    run: RunSettings
    preset: str | None = None
    """Sizes that go together: `stoker presets` lists them."""
    config: Path | None = None
    """A YAML file of settings, by the names of the flags."""
    json: bool = False
    """Print the outcome as one JSON object on standard output; all else goes to standard error."""


@dataclass(frozen=True, kw_only=True)
class ResumeArguments:
    """Continue a run from its newest valid checkpoint."""

    run: tyro.conf.Positional[str]
    """The run's name, or the path of its folder."""
    timesteps: Annotated[int, COUNT, tyro.conf.arg(aliases=("--total-timesteps",))] = 0
    """Train to this many environment steps in all; 0 is those the run was started for."""
    runs_dir: str = "runs"
    """Where run folders lie."""
    json: bool = False
    """Print the outcome as one JSON object on standard output; all else goes to standard error."""


def train(arguments: list[str]) -> int:
    """`stoker train`."""
    from stoker.train import start

    config, given = parse_train(arguments)
    with clean_output(given.json) as answer:
        outcome = start.train(config, audience=make_audience(given.json))
        return _leave(outcome, answer)


def resume(arguments: list[str]) -> int:
    """`stoker resume RUN`."""
    from stoker.train import start

    given = parse(ResumeArguments, arguments, "resume")
    path = find_run(given.run, given.runs_dir)
    with clean_output(given.json) as answer:
        outcome = start.resume(path, make_audience(given.json), given.timesteps or None)
        return _leave(outcome, answer)


def parse_train(
    arguments: list[str], command: str = "train", kind: type[Any] = TrainArguments
) -> tuple[Config, Any]:
    """A checked config from flags, and all flags as the dataclass `kind` has them.

    The flags that decide what the others default to are read first; then all flags are read over
    those defaults, so that `--help` shows what would really be used.
    """
    arguments = spelled_out(arguments)
    _refuse_other_words(arguments)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--preset", "--config", "--device", "--env-kwargs", "--algo"):
        first.add_argument(flag)
    first.add_argument("--env", "--env-id")
    try:
        early, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    asks_for_help = bool({"-h", "--help"} & set(arguments))
    file = Path(early.config) if early.config and not asks_for_help else None
    tuned: FindTuned = (lambda _: {}) if asks_for_help else partial(_tuned, early)
    given_first = (early.device, tuned, early.algo)
    base, aim, problems = layers(early.preset, file, _has_gpu(), *given_first)
    kind = with_algorithm(kind, base)
    defaults = kind(
        **{field.name: getattr(base, field.name) for field in dataclasses.fields(base)},
        preset=early.preset,
        config=file,
    )
    given = parse(kind, arguments, command, default=defaults)
    return finish(config_of(given, arguments), aim, problems), given


def config_of(given: Any, arguments: list[str]) -> Config:
    """The settings among flags that were read; so many environments are in flight as were said."""
    config = Config(**{f.name: getattr(given, f.name) for f in dataclasses.fields(Config)})
    if "n_envs" not in named_in(arguments):
        return config
    in_flight = config.env.in_flight or max(0, config.env.n_envs)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, in_flight=in_flight))


def named_in(arguments: list[str]) -> set[str]:
    """The settings that flags name, by whichever of their names."""
    flags = (word.partition("=")[0][2:] for word in arguments if word.startswith("--"))
    return {field.name for flag in flags if (field := find_field(flag)) is not None}


def refuse_all_but_ppo(config: Config, command: str) -> None:
    """Of commands that know what PPO's iterations are made of."""
    if config.learning.algo != "ppo":
        raise ConfigError(
            f"algo is {config.learning.algo}, and stoker {command} knows PPO alone. Train with "
            "stoker train; stoker report shows where a run's time went."
        )


def with_algorithm(kind: type[Any], base: Config) -> type[Any]:
    """`kind` with the flags of the algorithm, of which there are others for each."""
    learning = [("learning", type(base.learning))]
    made = dataclasses.make_dataclass(
        kind.__name__, learning, bases=(kind,), frozen=True, kw_only=True
    )
    made.__doc__ = kind.__doc__
    return made


def _tuned(early: argparse.Namespace, in_file: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was tuned for the environment that the flags, or the file, name."""
    from stoker.train.tuned import find_for

    flags: dict[str, Any] = {} if early.env is None else {"env": early.env}
    with suppress(ValueError):  # which is said when all flags are read
        if early.env_kwargs is not None:
            flags["env_kwargs"] = MAPPING.instance_from_str([early.env_kwargs])
    return find_for(flags, in_file)


def _refuse_other_words(arguments: list[str]) -> None:
    """Say what to do instead of flags that other libraries have."""
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    instead = {flag: ELSEWHERE.get(flag[2:].replace("-", "_")) for flag in flags}
    problems = [f"There is no flag {flag}. {hint}" for flag, hint in instead.items() if hint]
    if problems:
        raise ConfigError(problems)


def spelled_out(arguments: list[str]) -> list[str]:
    """`--subproc` is short for `--pool process`, and `--num_envs` is written `--num-envs`."""
    spelled: list[str] = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        if flag == "--subproc":
            spelled += ["--pool", "process"]
        elif flag.startswith("--"):
            spelled.append(flag.replace("_", "-") + equals + value)
        else:
            spelled.append(word)
    return spelled


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _leave(outcome: Outcome, answer: TextIO | None) -> int:
    if answer is not None:
        print(outcome_json(outcome), file=answer)
    lost = outcome.unsaved is not None and _is_lost(outcome)
    if outcome.signal is not None:
        return 128 + int(outcome.signal)
    if lost:
        return 1
    wanted = outcome.config.run.require_reward
    if wanted is not None and (outcome.reward is None or outcome.reward < wanted):
        shown = "unknown" if outcome.reward is None else f"{outcome.reward:.1f}"
        print(f"The mean reward is {shown}; {wanted:g} was required.", file=sys.stderr)
        return 1
    return 0


def _is_lost(outcome: Outcome) -> bool:
    """Say that the end of a run is not saved; whether nothing of the run is."""
    assert outcome.path is not None
    older = any(RunFolder(outcome.path).checkpoints.glob("step-*"))
    kept = "Its checkpoints are older" if older else "There is no checkpoint of it"
    print(f"error: How the run ended is not saved. {kept}. {outcome.unsaved}", file=sys.stderr)
    return not older
