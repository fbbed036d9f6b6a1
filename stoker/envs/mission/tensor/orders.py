"""What every unit of n missions sets out to do in a tick."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stoker.envs.mission.geometry import DIRECTIONS
from stoker.envs.mission.orders import PATROL_THROTTLE, PATROL_TICKS, PATROL_TURN, Action
from stoker.envs.mission.state import FULL_THROTTLE, SUB_TICKS, TOP_ALTITUDE
from stoker.envs.mission.tensor.geometry import bearing, nth
from stoker.envs.mission.tensor.sight import gaps
from stoker.envs.mission.tensor.state import Missions, TensorRules

_TAG, _SCAN = Action.TAG.value, Action.SCAN.value  # torch.compile compares no enumeration


class Orders(NamedTuple):
    """For each unit [n, U]; `turn` is in directions to the left, one a sub-tick."""

    throttle: Tensor  # int32, 0 to FULL_THROTTLE
    turn: Tensor  # int32, -SUB_TICKS to SUB_TICKS
    altitude: Tensor  # int32, 0 to TOP_ALTITUDE
    tag: Tensor  # bool
    scan: Tensor  # bool [n, A]


def orders(rules: TensorRules, state: Missions, action: Tensor) -> Orders:
    """The orders of attackers that take `action`, int64 [n, A], and of the defenders."""
    a = rules.attackers
    throttle, turn = defender_course(rules, state)
    wanted = (state.throttle[:, :a] + rules.throttle_of[action]).clamp(0, FULL_THROTTLE)
    climb = rules.climb_of[action] * rules.flier[:a]
    altitude = (state.altitude[:, :a] + climb).clamp(0, TOP_ALTITUDE)
    always = torch.ones_like(throttle, dtype=torch.bool)
    return Orders(
        throttle=torch.cat([wanted, throttle], -1),
        turn=torch.cat([rules.turn_of[action], turn], -1),
        altitude=torch.cat([altitude, state.altitude[:, a:]], -1),
        tag=torch.cat([action == _TAG, always], -1),
        scan=action == _SCAN,
    )


def defender_course(rules: TensorRules, state: Missions) -> tuple[Tensor, Tensor]:
    """Throttle and turn of the defenders, int32 [n, D] each, as a function of the state alone."""
    a = rules.attackers
    way, distance = gaps(rules, state)
    prey = torch.where(state.sees_attacker, distance.mT, torch.inf).argmin(-1)
    chases = state.sees_attacker.any(-1)
    to_prey = -nth(way.transpose(1, 2), prey)
    ticks = state.tick[:, None] // PATROL_TICKS + 1
    place = (state.patrol + PATROL_TURN * ticks) % DIRECTIONS
    zone = state.zone[:, None]
    ring = zone + rules.scenario.patrol_radius * rules.headings[place]
    alarm = state.captured[:, None] > 0
    post = torch.where(alarm[..., None], zone, ring)
    goal = torch.where(chases[..., None], to_prey, post - state.position[:, a:])
    half = DIRECTIONS // 2
    turn = (bearing(goal, rules.headings) - state.heading[:, a:] + half) % DIRECTIONS - half
    throttle = torch.where(chases | alarm, FULL_THROTTLE, PATROL_THROTTLE)
    return throttle.int(), turn.clamp(-SUB_TICKS, SUB_TICKS).int()
