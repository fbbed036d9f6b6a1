"""Scenario files: what ships, what is refused, and that all of it is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.envs.mission.scenario import SHIPPED, RewardWeights, Scenario, load_scenario
from stoker.errors import ConfigError


def why_not(source: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_scenario(source)
    return str(caught.value)


def test_the_default_is_what_the_code_says() -> None:
    assert load_scenario() == load_scenario("skirmish") == load_scenario({}) == Scenario()


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED.glob("*.yaml")])
def test_what_ships_can_be_played(name: str) -> None:
    assert load_scenario(name).attackers[0] >= 1


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("defenders: [1, 2]\narena: 90\nrewards: {win: 5}\n")
    scenario = load_scenario(str(path))
    assert scenario == Scenario(defenders=(1, 2), arena=90, rewards=RewardWeights(win=5))


def test_everything_wrong_is_told_at_once() -> None:
    told = why_not(
        {
            "atackers": [1, 2],
            "defenders": [3, 1],
            "arena": "wide",
            "fliers": True,
            "step_limit": 20.5,
            "zone_radius": 4,
            "tall_share": float("nan"),
            "obstacles": [0, 99],
            "rewards": {"win": None, "wine": 1},
            "tag_range": 50,
            "capture_ticks": 500,
        }
    )
    for expected in (
        "atackers is no setting of a scenario. Did you mean attackers",
        "defenders is [3, 1]; expected [lowest, highest], whole numbers from 0 to 8",
        "arena is 'wide'; expected a number from 40 to 1000",
        "fliers is True; expected a whole number from 0 to 8",
        "step_limit is 20.5; expected a whole number from 10 to 10000",
        "zone_radius is 4; expected [lowest, highest], numbers from 2 to 100",
        "tall_share is nan",
        "obstacles is [0, 99]",
        "rewards.win is None; expected a number",
        "rewards.wine is no setting of a scenario. Did you mean win",
        "tag_range is 50, beyond sight_range (30.0)",
        "capture_ticks is 500, which the step_limit of 150 leaves no time for",
    ):
        assert expected in told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fliers": 5}, "more than the 4 attackers"),
        ({"arena": 50}, "more than 15 % of the arena (7.5 m)"),
        ({"obstacle_half": [1, 30]}, "more than 20 % of the arena (20 m)"),
        ({"defender_tag_angle": 200}, "beyond defender_sight_angle (120.0)"),
        ({"rewards": 3}, "expected weights by name"),
    ],
)
def test_what_no_value_shows_by_itself(settings: dict[str, Any], told: str) -> None:
    assert told in why_not(settings)


def test_a_name_that_is_neither_shipped_nor_a_file() -> None:
    assert "Did you mean skirmish?" in why_not("skirmsh")
    assert "shipped one (skirmish, stronghold)" in why_not(3)


def test_a_file_that_is_no_scenario(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    for text in ("- 1", "!!python/object/apply:os.getcwd []", "a: &x 1\nb: *x"):
        path.write_text(text)
        assert "Cannot read the scenario" in why_not(str(path))
