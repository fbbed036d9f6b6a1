"""The rules of the mission, one by one, on a bare field."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from missions import EAST, NORTH, WEST, field

from stoker.envs.mission.observe import vector
from stoker.envs.mission.orders import Action, defender_course
from stoker.envs.mission.rules import Outcome, step
from stoker.envs.mission.scenario import COMPONENTS, load_scenario
from stoker.envs.mission.start import draws_at_start, initial
from stoker.envs.mission.state import FULL_THROTTLE, Rules, State, rules_of

SURE, NEVER = 0.999, 0.0
"""Uniforms with which a tag hits, or misses unless it is at hand."""


def play(rules: Rules, state: State, *actions: Action, luck: float = SURE) -> Outcome:
    for action in actions:
        outcome = step(rules, state, np.array([action]), np.full(rules.units, luck, np.float32))
        state = outcome.state
    return outcome


def component(outcome: Outcome, name: str) -> float:
    return float(outcome.components[COMPONENTS.index(name)])


def test_throttle_goes_up_by_thirds_of_the_top_speed() -> None:
    rules, state = field(attacker=(20, 50), flier_speed=3.0)
    walked = [
        float(play(rules, state, *[Action.FASTER] * n).state.position[0, 0]) for n in (1, 2, 3, 4)
    ]
    assert walked == pytest.approx([21, 23, 26, 29])
    assert play(rules, state, Action.FASTER, Action.SLOWER).state.throttle[0] == 0


def test_a_turn_is_one_direction_a_sub_tick() -> None:
    rules, state = field()
    assert play(rules, state, Action.LEFT).state.heading[0] == 4
    assert play(rules, state, Action.RIGHT).state.heading[0] == 44
    assert play(rules, state, *[Action.LEFT] * 12).state.heading[0] == EAST


def test_a_unit_slides_along_a_wall_and_stops_at_the_edge() -> None:
    rules, state = field(
        attacker=(28, 50), wall=(40, 50, 10, 20), heading=np.array([6, 0], np.int32)
    )
    after = play(rules, state, *[Action.FASTER] * 3).state
    assert after.position[0, 0] <= 29
    assert after.position[0, 1] > 55
    rules, state = field(attacker=(97, 50))
    after = play(rules, state, *[Action.FASTER] * 6).state
    assert 98 < after.position[0, 0] <= 99


@pytest.mark.parametrize(("height", "arrives"), [(1, True), (3, False)])
def test_fliers_pass_over_what_is_low(height: int, arrives: bool) -> None:
    rules, state = field(attacker=(28, 50), wall=(34, 50, 5, 5), wall_height=height)
    up = play(rules, state, Action.CLIMB, *[Action.FASTER] * 6).state
    assert (up.position[0, 0] > 40) == arrives


def test_nobody_lands_on_an_obstacle() -> None:
    rules, state = field(
        attacker=(34, 50), wall=(34, 50, 5, 5), wall_height=1, altitude=np.array([1, 0], np.int32)
    )
    assert play(rules, state, Action.DESCEND).state.altitude[0] == 1


def test_ground_units_take_altitude_for_hold() -> None:
    rules, state = field(fliers=0)
    climbed, held = (play(rules, state, action) for action in (Action.CLIMB, Action.HOLD))
    assert climbed.state.altitude[0] == 0
    assert (climbed.state.position == held.state.position).all()


def test_a_tag_stuns_a_defender_and_takes_an_attackers_shield() -> None:
    facing = np.array([EAST, WEST], np.int32)
    rules, state = field(attacker=(50, 50), defender=(56, 50), heading=facing)
    outcome = play(rules, state, Action.TAG)
    assert outcome.state.stun.tolist() == [rules.scenario.stun, rules.scenario.defender_stun]
    assert outcome.state.shield.tolist() == [1, 2]
    assert component(outcome, "tags_made") == pytest.approx(0.3)
    assert component(outcome, "tagged") == pytest.approx(-0.2)


def test_a_far_tag_can_miss_and_costs_the_cooldown_all_the_same() -> None:
    rules, state = field(
        attacker=(50, 50), defender=(58, 50), heading=np.array([EAST, EAST], np.int32)
    )
    outcome = play(rules, state, Action.TAG, luck=NEVER)
    assert outcome.state.stun.tolist() == [0, 0]
    assert outcome.state.tag_wait[0] == rules.scenario.tag_cooldown
    hit = 0.5 * 8 / rules.scenario.tag_range
    assert play(rules, state, Action.TAG, luck=hit + 0.01).state.stun[1] > 0
    assert play(rules, state, Action.TAG, luck=hit - 0.01).state.stun[1] == 0


@pytest.mark.parametrize(
    "why_not",
    [
        {"defender": (61, 50)},
        {"defender": (44, 50)},
        {"wall": (53, 50, 1, 3)},
        {"altitude": np.array([2, 0], np.int32)},
        {"tag_wait": np.array([1, 0], np.int32)},
        {"stun": np.array([0, 1], np.int32)},
        {"stun": np.array([1, 0], np.int32)},
    ],
    ids=["too far", "behind", "wall", "too high", "cooldown", "stunned already", "stunned itself"],
)
def test_what_a_tag_does_not_reach(why_not: dict[str, object]) -> None:
    placed = {"attacker": (50, 50), "defender": (56, 50), **why_not}
    rules, state = field(**placed)  # type: ignore[arg-type]
    outcome = play(rules, state, Action.TAG)
    assert component(outcome, "tags_made") == 0
    assert outcome.state.stun[1] <= state.stun[1]


def test_the_zone_is_won_by_holding_it() -> None:
    rules, state = field(attacker=(80, 50))
    ticks = rules.scenario.capture_ticks
    almost = play(rules, state, *[Action.HOLD] * (ticks - 1))
    assert (almost.state.captured, almost.won) == (ticks - 1, False)
    outcome = play(rules, almost.state, Action.HOLD)
    assert outcome.won
    assert component(outcome, "win") == 10
    assert component(outcome, "capture") == pytest.approx(5 / ticks)


def test_a_defender_inside_halts_the_capture_and_leaving_loses_it() -> None:
    rules, state = field(attacker=(80, 50), defender=(80, 58), captured=np.int32(5))
    halted = state._replace(stun=np.array([0, 0], np.int32))
    assert play(rules, halted, Action.HOLD).state.captured == 5
    stunned = state._replace(stun=np.array([0, 9], np.int32))
    assert play(rules, stunned, Action.HOLD).state.captured == 6
    aloft = stunned._replace(altitude=np.array([1, 0], np.int32))
    outcome = play(rules, aloft, Action.HOLD)
    assert outcome.state.captured == 4
    assert component(outcome, "capture") < 0


def test_the_last_attacker_out_loses() -> None:
    facing = np.array([NORTH, WEST], np.int32)
    rules, state = field(
        attacker=(50, 50), defender=(54, 50), heading=facing, shield=np.array([1, 2], np.int32)
    )
    outcome = play(rules, state, Action.HOLD)
    assert outcome.lost
    assert not outcome.won
    assert component(outcome, "lose") == -2
    assert not vector(rules, outcome.state)[:24].any()


def test_time_runs_out_at_the_limit() -> None:
    rules, state = field(tick=np.int32(148))
    assert not play(rules, state, Action.HOLD).out_of_time
    assert play(rules, state, Action.HOLD, Action.HOLD).out_of_time


def test_progress_is_the_share_of_the_arena_gained_on_the_zone() -> None:
    rules, state = field(attacker=(20, 50), flier_speed=3.0)
    outcome = play(rules, state, Action.FASTER)
    assert component(outcome, "progress") == pytest.approx(10 * 1 / 100, rel=1e-4)


def test_a_scan_shows_what_a_wall_hides_and_memory_fades() -> None:
    rules, state = field(attacker=(50, 50), defender=(70, 50), wall=(60, 50, 2, 10), memory=5)
    assert not state.sees_defender.any()
    scanned = play(rules, state, Action.SCAN).state
    assert scanned.spotted_age.tolist() == [0]
    assert scanned.spotted_at[0] == pytest.approx(scanned.position[1])
    assert scanned.scan_wait[0] == rules.scenario.scan_cooldown
    assert play(rules, scanned, *[Action.HOLD] * 9).state.spotted_age.tolist() == [5]


def test_a_defender_makes_for_the_nearest_that_it_sees() -> None:
    rules, state = field(
        attacker=(50, 60), defender=(50, 50), heading=np.array([EAST, 8], np.int32)
    )
    assert state.sees_attacker.all()
    throttle, turn = defender_course(rules, state)
    assert (throttle.tolist(), turn.tolist()) == ([FULL_THROTTLE], [4])


def test_unseen_attackers_leave_a_defender_to_its_patrol_until_the_alarm() -> None:
    rules, state = field(attacker=(40, 50), defender=(50, 50))
    assert not state.sees_attacker.any()
    elsewhere = state._replace(position=np.array([[9, 90], [50, 50]], np.float32))
    assert str(defender_course(rules, state)) == str(defender_course(rules, elsewhere))
    assert defender_course(rules, state)[0] < FULL_THROTTLE
    alarmed = state._replace(captured=np.int32(1))
    throttle, turn = defender_course(rules, alarmed)
    assert (throttle.tolist(), turn.tolist()) == ([FULL_THROTTLE], [0])


@pytest.mark.parametrize(
    ("draw", "moved"),
    [
        (3, lambda place: place * [-1, 1] + [100, 0]),
        (4, lambda place: place * [1, -1] + [0, 100]),
        (5, lambda place: place[..., ::-1]),
    ],
    ids=["mirror x", "mirror y", "swap"],
)
def test_a_start_may_be_mirrored_or_swapped(
    draw: int, moved: Callable[[np.ndarray], np.ndarray]
) -> None:
    rules = rules_of(load_scenario())
    uniforms = np.random.default_rng(0).random(draws_at_start(rules), np.float32)
    uniforms[3:6] = 0.9
    plain = initial(rules, uniforms)
    uniforms[draw] = 0.1
    turned = initial(rules, uniforms)
    assert turned.zone == pytest.approx(moved(plain.zone), abs=1e-4)
    assert turned.position[:4] == pytest.approx(moved(plain.position[:4]), abs=1e-4)
