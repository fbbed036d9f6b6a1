"""Search spaces: what a file may say, all that is wrong with it, and the default ones."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from stoker.config.check import MOST_ROWS, find_problems
from stoker.config.load import overlay
from stoker.config.names import KNOWN, find_field, near
from stoker.config.numbers import parse_count, parse_number, parse_sizes
from stoker.config.schema import Config, DQNSettings
from stoker.config.settings_yaml import parse_settings
from stoker.errors import ConfigError

TOTAL_STEP = "total_step"
"""Rows of a rollout, the guides' `target_step`: no setting, as n_steps follows from it."""
_NOT_SEARCHED = ("env", "env_kwargs", "algo", "device")
"""What is trained, and where; nor is anything of the run's own, as its seed or its length."""
_KEYS = {"low", "high", "step", "log"}
_SHAPE = "{low: 1e-5, high: 1e-2, log: true}, {low: 4, high: 32, step: 4} or a list of choices"
_DEFAULTS = ("ppo", "dqn")

Value = str | int | float | bool | None


class Span(NamedTuple):
    """Numbers from `low` to `high`, both of which may be drawn."""

    low: float
    high: float
    step: float | None
    log: bool
    whole: bool

    @property
    def limits(self) -> tuple[Value, ...]:
        """If these are allowed, all that may be drawn is."""
        return (self.low, self.high)

    @property
    def plain(self) -> dict[str, Any]:
        """As it is written."""
        steps = {} if self.step is None else {"step": self.step}
        return {"low": self.low, "high": self.high, **steps, **({"log": True} if self.log else {})}


class Choices(NamedTuple):
    """One of some values; layer sizes are words such as `64,64`."""

    values: tuple[Value, ...]

    @property
    def limits(self) -> tuple[Value, ...]:
        """If these are allowed, all that may be drawn is."""
        return self.values

    @property
    def plain(self) -> list[Value]:
        """As it is written."""
        return list(self.values)


Space = Mapping[str, Span | Choices]
"""By setting, or `total_step`."""


def read_space_file(path: Path) -> dict[str, Any]:
    """What a file says, before it is understood."""
    try:
        return parse_settings(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read the space file {path}: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"The space file {path} cannot be used: {error}.") from error


def default_space(algo: str) -> dict[str, Any]:
    """What is searched unless somebody says otherwise, as a file would say it."""
    if algo not in _DEFAULTS:
        raise ConfigError(f"There is no default space for {algo}; name a file with --space.")
    text = resources.files(__package__).joinpath("spaces", f"{algo}.yaml").read_bytes()
    return parse_settings(text)


def understand(written: Mapping[str, Any], base: Config) -> Space:
    """The space that `written` describes, for trials that are `base` otherwise.

    ConfigError with all that is wrong, at once.
    """
    space: dict[str, Span | Choices] = {}
    problems: list[str] = []
    names: dict[str, str] = {}
    for key, held in written.items():
        name = _name_of(key)
        if name is None:
            problems.append(_unknown(key))
        elif names.setdefault(name, key) != key:
            problems.append(f"space: {names[name]} and {key} are the same setting; keep one.")
        else:
            try:
                space[name] = _spread(name, held)
            except (ValueError, TypeError, OverflowError) as error:
                problems.append(f"space: {name}: {error}.")
    if not written:
        problems.append(f"space: it is empty; name settings, each with {_SHAPE}.")
    if TOTAL_STEP in space and "n_steps" in space:
        problems.append(f"space: n_steps follows from {TOTAL_STEP}; keep one of the two.")
    problems += [line for name in space for line in _not_allowed(name, space[name], base)]
    problems += [] if problems else _wrong_rollouts(space, base)
    if problems:
        raise ConfigError(problems)
    return space


def _name_of(key: str) -> str | None:
    """The setting that a key names, or `total_step`; None if it cannot be searched."""
    if key.replace("-", "_") == TOTAL_STEP:
        return TOTAL_STEP
    field = find_field(key)
    searched = field is not None and field.group != "run" and field.name not in _NOT_SEARCHED
    return field.name if field is not None and searched else None


def _unknown(key: str) -> str:
    if find_field(key) is not None:
        return f"space: {key} is the same for every trial; give it as a flag instead."
    known = [TOTAL_STEP, *(k for k in KNOWN if _name_of(k))]
    return f"space: there is no setting {key!r}.{near(key, known)}"


def _spread(name: str, held: Any) -> Span | Choices:
    """ValueError with what is wrong, as the end of a sentence."""
    number = int if name == TOTAL_STEP else _number_of(KNOWN[name].type)
    if isinstance(held, list):
        return _choices(name, held)
    if not isinstance(held, Mapping):
        raise ValueError(f"{held!r} is no range and no list; write {_SHAPE}")
    if number is None:
        raise ValueError("it is no number; write a list of choices")
    strange = sorted(map(str, held.keys() - _KEYS))
    if strange or not {"low", "high"} <= held.keys():
        what = f"{', '.join(strange)} is not known" if strange else "low or high is missing"
        raise ValueError(f"{what}; write {_SHAPE}")
    return _span(held, parse_count if number is int else parse_number, number is int)


def _span(held: Mapping[str, Any], parse: Any, whole: bool) -> Span:
    low, high = parse(held["low"]), parse(held["high"])
    step = None if held.get("step") is None else parse(held["step"])
    log = held.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"log is {log!r}; it is true or false")
    if low > high:
        raise ValueError(f"low {low:g} is above high {high:g}; a range goes up")
    if low == high:
        raise ValueError(f"from {low:g} to {high:g} there is nothing to search; give it as a flag")
    if log and low <= 0:
        raise ValueError(f"low is {low:g}, which has no logarithm; use a low above 0, or no log")
    if step is not None and (step <= 0 or log):
        why = "a step and log exclude each other" if log else f"step is {step:g}, and not above 0"
        raise ValueError(why)
    if step is not None and step > high - low:
        raise ValueError(f"step {step:g} is larger than the range from {low:g} to {high:g}")
    if step is not None:  # the last that is reached, which is where a step is whole
        high = low + step * int((high - low) / step + 1e-9)
    return Span(low, high, step, log, whole)


def _choices(name: str, held: list[Any]) -> Choices:
    if not held:
        raise ValueError("the list of choices is empty")
    values = tuple(_plain(name, value) for value in held)
    if len(set(values)) < len(values):
        raise ValueError("a choice is there twice; keep one")
    if len(values) == 1:
        raise ValueError(f"{held[0]!r} is the only choice; give it as a flag")
    return Choices(values)


def _plain(name: str, value: Any) -> Value:
    """A choice as one word or number."""
    if name == TOTAL_STEP:
        return parse_count(value)
    if typing.get_origin(KNOWN[name].type) is tuple:
        return ",".join(map(str, parse_sizes(value)))
    number = _number_of(KNOWN[name].type)
    if number is not None and value is not None and value != "auto":
        return parse_count(value) if number is int else parse_number(value)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"{value!r} is no choice; a choice is one word or number")
    return value


def _number_of(kind: Any) -> type[int] | type[float] | None:
    """The numbers that a type takes, alone or among others."""
    options = typing.get_args(kind) if typing.get_origin(kind) is not tuple else ()
    for number in (int, float):
        if kind is number or number in options:
            return number
    return None


def _not_allowed(name: str, spread: Span | Choices, base: Config) -> Iterator[str]:
    """By the rules that hold for any run."""
    for value in spread.limits:
        if name == TOTAL_STEP:
            if typing.cast(int, value) < 1:
                yield f"space: {name} is {value}; it must be 1 or more."
            continue
        config, problems = overlay(base, {name: value})
        found = problems or [p for p in find_problems(config) if p.startswith(f"{name} is ")]
        yield from (f"space: {problem}" for problem in found)


def _wrong_rollouts(space: Space, base: Config) -> Iterator[str]:
    """By the smallest and the largest there can be."""

    def ends(name: str, otherwise: int) -> tuple[int, int]:
        spread = space.get(name)
        numbers = [otherwise] if spread is None else [int(str(v)) for v in spread.limits]
        return min(numbers), max(numbers)

    (fewest, most), (short, long) = (
        ends("n_envs", base.env.n_envs),
        ends("n_steps", base.learning.n_steps),
    )
    low, high = ends(TOTAL_STEP, 0)
    least = max(low, fewest) if TOTAL_STEP in space else fewest * short
    largest = max(high, most) if TOTAL_STEP in space else most * long
    if least < 2:
        yield "space: the smallest rollout has 1 row; it must have 2 or more."
    if largest > MOST_ROWS:
        rows = f"{largest:,} rows; it must have at most {MOST_ROWS:,}"
        yield f"space: the largest rollout has {rows}."
    if isinstance(base.learning, DQNSettings):
        size, _ = ends("buffer_size", base.learning.buffer_size)
        _, ahead = ends("n_step_return", base.learning.n_step_return)
        steps = -(-largest // most)
        hardest = {"n_envs": most, "n_steps": steps, "buffer_size": size, "n_step_return": ahead}
        found = find_problems(overlay(base, hardest)[0])
        yield from (f"space: {line}" for line in found if line.startswith("buffer_size is "))


def without(space: Space, settled: Mapping[str, Any]) -> Space:
    """The space less what flags, a file or a preset settle."""
    gone = {*settled} | ({TOTAL_STEP} if "n_steps" in settled else set())
    return {name: spread for name, spread in space.items() if name not in gone}


def capped(space: Space, cores: int) -> tuple[Space, str | None]:
    """No more workers than a trial has cores; and that in words, where it changes something."""
    spread = space.get("n_workers")
    if not isinstance(spread, Span) or spread.high <= cores:
        return space, None
    low = min(spread.low, cores)
    told = f"n_workers: {spread.low:g} to {spread.high:g} in the space, {low:g} to {cores} here, "
    told += "as a trial has no more cores."
    others = {name: each for name, each in space.items() if name != "n_workers"}
    if low == cores:  # nothing to search: a worker a core is what a run does by itself
        return others, told
    return {**others, "n_workers": spread._replace(low=low, high=cores)}, told
