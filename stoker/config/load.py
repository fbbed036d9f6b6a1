"""Where values come from: defaults for the device < preset < file < flags."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from stoker.config.algorithms import ALGORITHMS
from stoker.config.check import MOST_ROWS, find_problems, largest_divisor
from stoker.config.names import KNOWN, find_field, suggest
from stoker.config.numbers import parse_count, parse_number, parse_sizes
from stoker.config.presets import PRESETS, REPLAY_PRESETS, default_preset
from stoker.config.schema import Config, groups_of
from stoker.config.settings_yaml import parse_settings
from stoker.config.vary import plain_vary
from stoker.errors import ConfigError

FindTuned = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From settings that name an environment to those that were tuned for it: the preset `auto`."""
_AUTO = "auto"


def base_config(preset: str | None, on_gpu: bool, algo: str = "ppo") -> Config:
    """The two lowest layers: the defaults of the algorithm and the device, a preset over them."""
    defaults = REPLAY_PRESETS if algo == "dqn" else PRESETS
    settings = {**defaults[default_preset(on_gpu)].settings()}
    if preset is not None:
        settings |= find_preset(preset, algo)
    kinds = groups_of(algo)
    groups: dict[str, dict[str, Any]] = {group: {} for group in kinds}
    for name, value in settings.items():
        groups[KNOWN[name].group][name] = value
    return Config(**{group: kinds[group](**values) for group, values in groups.items()})


def find_preset(name: str, algo: str = "ppo") -> dict[str, object]:
    """The settings of the preset called `name`."""
    if algo == "dqn" and isinstance(name, str):
        if name not in REPLAY_PRESETS:
            raise ConfigError(
                f"preset is {name!r}, and algo is dqn, which has {', '.join(REPLAY_PRESETS)}; the "
                "others are sizes of PPO's rollouts. Leave it out."
            )
        return REPLAY_PRESETS[name].settings()
    if name == _AUTO:
        raise ConfigError(
            "preset is auto, which is what `stoker tune` found on a machine: use stoker.resolve, "
            "which looks there, or name a preset."
        )
    if not isinstance(name, str) or name not in PRESETS:  # a file may hold anything
        raise ConfigError(f"There is no preset {name!r}.{suggest(name, [*PRESETS, _AUTO])}")
    return PRESETS[name].settings()


def read_file(path: Path) -> dict[str, Any]:
    """A settings file: YAML, loaded safely, one flat mapping."""
    try:
        return parse_settings(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"The config file {path} cannot be used: {error}.") from error


def overlay(config: Config, settings: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """`config` with `settings` over it, and what was wrong with them."""
    problems = []
    algo = config.learning.algo
    groups: dict[str, dict[str, Any]] = {group: {} for group in groups_of(algo)}
    written: dict[str, str] = {}
    for key, value in settings.items():
        known = find_field(key)
        if known is None:
            problems.append(f"There is no setting {key!r}.{suggest(key, KNOWN)}")
            continue
        if algo not in known.algos:
            theirs = " and ".join(known.algos)
            problems.append(f"{key} is a setting of {theirs}, and algo is {algo}; leave it out.")
            continue
        if written.setdefault(known.name, key) != key:
            problems.append(f"{written[known.name]} and {key} are the same setting; keep one.")
        try:
            groups[known.group][known.name] = _convert(value, known.type)
        except (ValueError, TypeError, OverflowError) as error:
            problems.append(f"{known.name}: {error}.")
    if "n_envs" in groups["env"]:
        groups["env"].setdefault("in_flight", max(0, groups["env"]["n_envs"]))
    replaced = {
        group: dataclasses.replace(getattr(config, group), **values)
        for group, values in groups.items()
    }
    return Config(**replaced), problems


def finish(config: Config, batch_aim: int, problems: list[str] | None = None) -> Config:
    """Resolve what is `auto` and raise every problem found, all at once."""
    if config.learning.batch_size == "auto" and 0 < config.total_batch <= MOST_ROWS:
        divides = config.learning.algo == "ppo"
        size = largest_divisor(config.total_batch, batch_aim) if divides else batch_aim
        learning = dataclasses.replace(config.learning, batch_size=size)
        config = dataclasses.replace(config, learning=learning)
    problems = [*(problems or ()), *find_problems(config)]
    if problems:
        raise ConfigError(problems)
    run = dataclasses.replace(config.run, vary=plain_vary(config.run.vary))
    return dataclasses.replace(config, run=run)


def layers(
    preset: str | None,
    file: Path | None,
    on_gpu: bool,
    device: str | None = None,
    tuned: FindTuned | None = None,
    algo: str | None = None,
) -> tuple[Config, int, list[str]]:
    """All below the flags: the config so far, the preset's minibatch aim, and what was wrong.

    `on_gpu` is whether there is a GPU; `device` is what a flag says of it, before the file, and
    `algo` likewise. `tuned` is told the file's settings.
    """
    settings = read_file(file) if file is not None else {}
    named = settings.pop("preset", None)
    preset = named if preset is None else preset
    on_gpu = on_gpu and (device or settings.get("device")) != "cpu"
    if algo is not None:
        settings.pop("algo", None)
    algo = _algorithm(settings.get("algo") if algo is None else algo)
    problems: list[str] = []
    try:
        if preset == _AUTO and tuned is not None:
            base, problems = overlay(base_config(None, on_gpu, algo), tuned(settings))
        else:
            base = base_config(preset, on_gpu, algo)
    except ConfigError as error:
        base, problems = base_config(None, on_gpu, algo), error.problems
    config, wrong = overlay(base, settings)
    return config, base.minibatch, problems + wrong


def resolve(
    settings: Mapping[str, Any],
    *,
    preset: str | None = None,
    file: Path | None = None,
    on_gpu: bool = False,
    tuned: FindTuned | None = None,
) -> Config:
    """A checked config from all layers; `settings` are the top one."""
    given = (settings.get("device"), tuned, settings.get("algo"))
    config, aim, problems = layers(preset, file, on_gpu, *given)
    config, wrong = overlay(config, settings)
    return finish(config, aim, problems + wrong)


def from_flat(settings: Mapping[str, Any]) -> Config:
    """A config from `Config.flat()` alone, with no preset under it: for resuming a run."""
    algo = _algorithm(settings.get("algo"))
    config, problems = overlay(base_config(None, on_gpu=False, algo=algo), settings)
    return finish(config, config.total_batch, problems)


def _algorithm(named: Any) -> str:
    """The algorithm; PPO if none is named, or none that there is, which `overlay` says."""
    return named if isinstance(named, str) and named in ALGORITHMS else "ppo"


def _convert(value: Any, kind: Any) -> Any:
    """`value`, as YAML or Python gives it, as the type a field wants."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        words = [word for option in options for word in typing.get_args(option)]
        if value in words or (value is None and type(None) in options):
            return value
        return _convert(value, next(option for option in options if option is not type(None)))
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{value!r} is none of {', '.join(map(str, options))}")
        return value
    if origin is tuple:
        return parse_sizes(value)
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is not a mapping")
        return dict(value)
    if kind is int:
        return parse_count(value)
    if kind is float:
        return parse_number(value)
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value
