"""What the agents of a population differ in: what each draws from, and what it draws."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from stoker.config.names import KNOWN, find_field, near
from stoker.config.numbers import parse_number

VARIED = ("learning_rate", "clip_range", "ent_coef", "vf_coef")
"""The settings that may differ from agent to agent."""
_DIGITS = 4  # of what is drawn from a range: what is told can be typed, and is what was used


class Range(NamedTuple):
    """Numbers from `low` to `high`: alike in their logarithms if both are above 0."""

    low: float
    high: float

    def draw(self, chance: float) -> float:
        """For `chance` from 0 to 1, each number as likely as the next."""
        if self.low > 0:
            ratio = math.log(self.high) - math.log(self.low)
            number = self.low * math.exp(chance * ratio)
        else:
            number = self.low + chance * (self.high - self.low)
        return min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)

    @property
    def limits(self) -> tuple[float, ...]:
        """If these are allowed, all that may be drawn is."""
        return (self.low, self.high)

    @property
    def plain(self) -> str:
        """As it is written."""
        return f"{self.low!r}..{self.high!r}"


class Choice(NamedTuple):
    """One of some numbers."""

    values: tuple[float, ...]

    def draw(self, chance: float) -> float:
        """For `chance` from 0 to 1, each of them as likely as the next."""
        return self.values[int(chance * len(self.values))]

    @property
    def limits(self) -> tuple[float, ...]:
        """If these are allowed, all that may be drawn is."""
        return self.values

    @property
    def plain(self) -> list[float]:
        """As it is written."""
        return list(self.values)


class Each(NamedTuple):
    """Nothing to draw: every agent's own number, in their order."""

    values: tuple[float, ...]

    @property
    def limits(self) -> tuple[float, ...]:
        """All that there are."""
        return self.values

    @property
    def plain(self) -> dict[str, list[float]]:
        """As it is written."""
        return {"each": list(self.values)}


def read_spread(written: object) -> Range | Choice | Each:
    """What to draw from, as `"1e-4..1e-2"`, `"0,0.01"`, `[0, 0.01]` or, for each agent its own,
    `{"each": [0, 0.01]}`; ValueError if it is none of these."""
    if isinstance(written, dict) and [*written] == ["each"] and isinstance(written["each"], list):
        return Each(tuple(parse_number(part) for part in written["each"]))
    if isinstance(written, str) and ".." in written:
        low, high = (parse_number(end) for end in written.split("..", 1))
        if low >= high:
            raise ValueError(f"{written} is empty; a range goes up, from its low end to its high")
        return Range(low, high)
    parts: object = written.split(",") if isinstance(written, str) and "," in written else written
    if not isinstance(parts, list) or len({parse_number(part) for part in parts}) < 2:
        raise ValueError(
            f"{written!r} is neither a range, such as 1e-4..1e-2, nor a list of several values, "
            "such as 0,0.01"
        )
    return Choice(tuple(parse_number(part) for part in parts))


class Reading(NamedTuple):
    """What `vary` says, by setting, and what is wrong with it."""

    spreads: dict[str, Range | Choice | Each]
    problems: list[str]


def read_vary(vary: Mapping[str, Any]) -> Reading:
    """Understand as much of `vary` as can be."""
    reading, written = Reading({}, []), dict[str, str]()
    for key, value in vary.items():
        field = find_field(str(key))
        if field is None or field.name not in VARIED:
            can = [known for known, each in KNOWN.items() if each.name in VARIED]
            reading.problems.append(
                f"vary: {key!r} cannot differ from agent to agent; {', '.join(VARIED)} can."
                f"{near(key, can)}"
            )
            continue
        if written.setdefault(field.name, key) != key:
            reading.problems.append(
                f"vary: {written[field.name]} and {key} are the same setting; keep one."
            )
        try:
            reading.spreads[field.name] = read_spread(value)
        except (ValueError, TypeError, OverflowError) as error:
            reading.problems.append(f"vary: {field.name}: {error}.")
    return reading


def plain_vary(vary: Mapping[str, Any]) -> dict[str, Any]:
    """`vary` by the settings' own names, in plain values, for a file to hold."""
    return {name: spread.plain for name, spread in read_vary(vary).spreads.items()}


def drawn_settings(vary: Mapping[str, Any], seed: int, agents: int) -> list[dict[str, float]]:
    """What each agent has drawn, by setting, in a run with `seed`.

    It follows from the seed, the agent's number and the setting: in a larger population, or with
    one more setting that varies, an agent has the same.
    """
    spreads = read_vary(vary).spreads
    return [
        {
            name: spread.values[agent]
            if isinstance(spread, Each)
            else spread.draw(random.Random(f"{seed} {agent} {name}").random())
            for name, spread in spreads.items()
        }
        for agent in range(agents)
    ]
