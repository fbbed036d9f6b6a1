"""What a scenario file may say, and every check of it."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.config.settings_yaml import parse_settings
from stoker.errors import ConfigError

SHIPPED = Path(__file__).parent / "scenarios"
DEFAULT = "skirmish"
WIDEST_ZONE = 0.15
"""The largest radius there may be, as a share of the arena."""


def _count(default: int, low: int, high: int) -> Any:
    return field(default=default, metadata={"kind": "count", "low": low, "high": high})


def _number(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"kind": "number", "low": low, "high": high})


def _counts(default: tuple[int, int], low: int, high: int) -> Any:
    return field(default=default, metadata={"kind": "counts", "low": low, "high": high})


def _numbers(default: tuple[float, float], low: float, high: float) -> Any:
    return field(default=default, metadata={"kind": "numbers", "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """By what each component of the reward is multiplied; docs/mission.md says what they count."""

    progress: float = _number(10.0, -100, 100)
    capture: float = _number(5.0, -100, 100)
    tags_made: float = _number(0.3, -100, 100)
    tagged: float = _number(-0.2, -100, 100)
    win: float = _number(10.0, -100, 100)
    lose: float = _number(-2.0, -100, 100)
    time: float = _number(-0.01, -100, 100)


COMPONENTS = tuple(f.name for f in dataclasses.fields(RewardWeights))
"""The names of the reward's components, in the order in which they are summed."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The setting of a mission. A pair is a range that each episode draws from, ends included.

    Lengths are in metres, angles in degrees, durations in ticks (decisions).
    """

    arena: float = _number(100.0, 40, 1000)
    """Side of the square that nobody leaves."""
    step_limit: int = _count(150, 10, 10_000)
    """Ticks until the episode is truncated."""
    attackers: tuple[int, int] = _counts((4, 4), 1, 8)
    """How many attackers; the upper end is the number of actions."""
    fliers: int = _count(1, 0, 8)
    """The first so many attackers can fly."""
    defenders: tuple[int, int] = _counts((2, 3), 0, 8)
    obstacles: tuple[int, int] = _counts((6, 10), 0, 24)
    """How many obstacles are drawn; those too near a start or the zone are struck out."""
    obstacle_half: tuple[float, float] = _numbers((3.0, 8.0), 1, 100)
    """Half of an obstacle's extent, drawn for each axis."""
    tall_share: float = _number(0.5, 0, 1)
    """Probability that an obstacle is too high to fly over."""
    zone_radius: tuple[float, float] = _numbers((8.0, 11.0), 2, 100)
    capture_ticks: int = _count(15, 1, 1000)
    """Ticks that the zone must be held."""
    patrol_radius: float = _number(18.0, 0, 500)
    """Distance from the zone's centre at which idle defenders circle."""
    shield: int = _count(2, 1, 20)
    """Tags that put an attacker out."""
    ground_speed: float = _number(4.0, 0.1, 10)
    """Metres a tick, at full throttle; likewise the next two."""
    flier_speed: float = _number(5.0, 0.1, 10)
    defender_speed: float = _number(3.4, 0.1, 10)
    sight_range: float = _number(30.0, 1, 1000)
    sight_angle: float = _number(180.0, 1, 360)
    tag_range: float = _number(10.0, 0.5, 1000)
    tag_angle: float = _number(90.0, 1, 360)
    tag_cooldown: int = _count(4, 0, 1000)
    defender_sight_range: float = _number(26.0, 1, 1000)
    defender_sight_angle: float = _number(120.0, 1, 360)
    defender_tag_range: float = _number(8.0, 0.5, 1000)
    defender_tag_angle: float = _number(60.0, 1, 360)
    defender_tag_cooldown: int = _count(6, 0, 1000)
    tag_falloff: float = _number(0.5, 0, 1)
    """A tag at the end of its range fails with this probability, one at hand never."""
    stun: int = _count(2, 0, 1000)
    """Ticks that an attacker stands still after it was tagged."""
    defender_stun: int = _count(12, 0, 1000)
    scan_range: float = _number(45.0, 0, 1000)
    scan_cooldown: int = _count(10, 0, 1000)
    memory: int = _count(20, 1, 1000)
    """Ticks for which a defender once seen stays on the attackers' map."""
    ray_range: float = _number(25.0, 1, 1000)
    rewards: RewardWeights = field(default_factory=RewardWeights)


def load_scenario(source: str | Mapping[str, Any] = DEFAULT) -> Scenario:
    """The scenario of a shipped name, a YAML file, or settings given directly.

    What is left out has the default above. Everything wrong is reported at once.
    """
    if isinstance(source, Mapping):
        return _check("The scenario", dict(source))
    if not isinstance(source, str):
        raise ConfigError(
            f"The scenario is {source!r}; give the name of a shipped one ({_shipped()}), the path "
            "of a YAML file, or a mapping of settings."
        )
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    path = shipped.get(source, Path(source))
    if not path.is_file():
        raise ConfigError(
            f"There is no scenario {source!r}: it is neither a file nor a shipped name "
            f"({_shipped()}).{_near(source, list(shipped))}"
        )
    try:
        settings = parse_settings(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read the scenario {source}: {error}") from error
    return _check(f"The scenario {source}", settings)


def _shipped() -> str:
    return ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def _check(name: str, settings: dict[str, Any]) -> Scenario:
    weights = settings.pop("rewards", {})
    problems: list[str] = []
    if not isinstance(weights, Mapping):
        problems.append(f"rewards is {weights!r}; expected weights by name, as {{win: 10}}")
        weights = {}
    known_weights = _read(RewardWeights, weights, problems, "rewards.")
    known = _read(Scenario, settings, problems)
    scenario = Scenario(**known, rewards=RewardWeights(**known_weights))
    problems += _across(scenario)
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"{name} cannot be played:\n{lines}")
    return scenario


def _read(
    cls: type, given: Mapping[str, Any], problems: list[str], prefix: str = ""
) -> dict[str, Any]:
    """The values of `given` that are right, as `cls` keeps them; the rest goes to `problems`."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.metadata}
    read = {}
    for name, value in given.items():
        if name not in fields:
            hint = _near(str(name), list(fields)) or f" Known: {', '.join(fields)}."
            problems.append(f"{prefix}{name} is no setting of a scenario.{hint}")
            continue
        kind, low, high = (fields[name].metadata[key] for key in ("kind", "low", "high"))
        whole = kind.startswith("count")
        numbers = "whole numbers" if whole else "numbers"
        pair = kind.endswith("s")
        entries = value if pair and isinstance(value, list | tuple) else [value]
        fits = len(entries) == (2 if pair else 1) and all(
            _is_number(entry, whole) and low <= entry <= high for entry in entries
        )
        if not fits or list(entries) != sorted(entries):
            wanted = f"[lowest, highest], {numbers}" if pair else numbers.rstrip("s")
            article = "" if pair else "a "
            problems.append(
                f"{prefix}{name} is {value!r}; expected {article}{wanted} from {low} to {high}"
            )
            continue
        read[name] = tuple(entries) if pair else value
    return read


def _is_number(value: Any, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return math.isfinite(value)


def _across(s: Scenario) -> Iterator[str]:
    """What no value shows by itself."""
    if s.fliers > s.attackers[1]:
        yield f"fliers is {s.fliers}, more than the {s.attackers[1]} attackers there may be"
    if s.capture_ticks >= s.step_limit:
        yield (
            f"capture_ticks is {s.capture_ticks}, which the step_limit of {s.step_limit} leaves "
            "no time for"
        )
    if s.zone_radius[1] > WIDEST_ZONE * s.arena:
        yield (
            f"zone_radius goes up to {s.zone_radius[1]}, more than {100 * WIDEST_ZONE:g} % of "
            f"the arena ({WIDEST_ZONE * s.arena:g} m)"
        )
    if s.obstacle_half[1] > 0.2 * s.arena:
        yield (
            f"obstacle_half goes up to {s.obstacle_half[1]}, more than 20 % of the arena "
            f"({0.2 * s.arena:g} m)"
        )
    for side, sight, tag in (
        ("", (s.sight_range, s.sight_angle), (s.tag_range, s.tag_angle)),
        (
            "defender_",
            (s.defender_sight_range, s.defender_sight_angle),
            (s.defender_tag_range, s.defender_tag_angle),
        ),
    ):
        for what, seen, reached in zip(("range", "angle"), sight, tag, strict=True):
            if reached > seen:
                yield (
                    f"{side}tag_{what} is {reached}, beyond {side}sight_{what} ({seen}): nobody "
                    "tags what they cannot see"
                )


def _near(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
