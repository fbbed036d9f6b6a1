"""What every unit sets out to do in a tick: attackers by their action, defenders by script."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from stoker.envs.mission.geometry import DIRECTIONS, HEADING, bearing
from stoker.envs.mission.sight import gaps
from stoker.envs.mission.state import FULL_THROTTLE, SUB_TICKS, TOP_ALTITUDE, Rules, State

PATROL_THROTTLE = 2
PATROL_TICKS, PATROL_TURN = 6, 6
"""An idle defender makes for a point on its ring that moves on by so many directions, every so
many ticks."""


class Action(IntEnum):
    """What an attacker may do in a tick. Ground units take CLIMB and DESCEND for HOLD."""

    HOLD = 0
    FASTER = 1
    SLOWER = 2
    LEFT = 3
    RIGHT = 4
    TAG = 5
    SCAN = 6
    CLIMB = 7
    DESCEND = 8


THROTTLE, TURN, CLIMB = np.zeros((3, len(Action)), np.int32)
THROTTLE[[Action.FASTER, Action.SLOWER]] = 1, -1
TURN[[Action.LEFT, Action.RIGHT]] = SUB_TICKS, -SUB_TICKS
CLIMB[[Action.CLIMB, Action.DESCEND]] = 1, -1
"""By how much each action changes an attacker's throttle, heading and altitude."""


class Orders(NamedTuple):
    """For each unit [U]; `turn` is in directions to the left, one a sub-tick."""

    throttle: np.ndarray  # int32, 0 to FULL_THROTTLE
    turn: np.ndarray  # int32, -SUB_TICKS to SUB_TICKS
    altitude: np.ndarray  # int32, 0 to TOP_ALTITUDE
    tag: np.ndarray  # bool
    scan: np.ndarray  # bool [A]


def orders(rules: Rules, state: State, action: np.ndarray) -> Orders:
    """The orders of attackers that take `action`, int [A], and of the defenders."""
    a = rules.attackers
    throttle, turn = defender_course(rules, state)
    climb = CLIMB[action] * rules.flier[:a]
    return Orders(
        throttle=np.concatenate(
            [np.clip(state.throttle[:a] + THROTTLE[action], 0, FULL_THROTTLE), throttle]
        ),
        turn=np.concatenate([TURN[action], turn]),
        altitude=np.concatenate(
            [np.clip(state.altitude[:a] + climb, 0, TOP_ALTITUDE), state.altitude[a:]]
        ),
        tag=np.concatenate([action == Action.TAG, np.ones(rules.defenders, bool)]),
        scan=action == Action.SCAN,
    )


def defender_course(rules: Rules, state: State) -> tuple[np.ndarray, np.ndarray]:
    """Throttle and turn of the defenders, int32 [D] each, as a function of the state alone.

    A defender makes for the nearest attacker that it sees; else, while the zone is being captured,
    for the zone; else, at leisure, for its place on the ring around it. It tags whenever it can.
    """
    a = rules.attackers
    way, distance = gaps(rules, state)
    prey = np.where(state.sees_attacker, distance.T, np.inf).argmin(-1)
    chases = np.asarray(state.sees_attacker.any(-1))
    to_prey = -way[prey, np.arange(rules.defenders)]
    place = (state.patrol + PATROL_TURN * (state.tick // PATROL_TICKS + 1)) % DIRECTIONS
    ring = state.zone + np.float32(rules.scenario.patrol_radius) * HEADING[place]
    alarm = state.captured > 0
    post = np.where(alarm, state.zone, ring)
    goal = np.where(chases[:, None], to_prey, post - state.position[a:])
    half = DIRECTIONS // 2
    turn = (bearing(goal) - state.heading[a:] + half) % DIRECTIONS - half
    throttle = np.where(chases | alarm, FULL_THROTTLE, PATROL_THROTTLE)
    return throttle.astype(np.int32), np.clip(turn, -SUB_TICKS, SUB_TICKS).astype(np.int32)
