"""Missions that one can recognise: a bare field, and a commander that marches on the zone."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.envs.mission.geometry import Boxes
from stoker.envs.mission.observe import PER_ATTACKER
from stoker.envs.mission.orders import Action
from stoker.envs.mission.scenario import load_scenario
from stoker.envs.mission.sight import look
from stoker.envs.mission.start import draws_at_start, initial
from stoker.envs.mission.state import Rules, State, rules_of

FIELD = {"attackers": [1, 1], "fliers": 1, "defenders": [1, 1], "obstacles": [0, 1]}
EAST, NORTH, WEST, SOUTH = 0, 12, 24, 36


def field(
    attacker: tuple[float, float] = (20, 50),
    defender: tuple[float, float] = (5, 5),
    wall: tuple[float, float, float, float] | None = None,
    wall_height: int = 3,
    **changes: Any,
) -> tuple[Rules, State]:
    """One flier against one defender, both looking east, the zone at (80, 50) with radius 10.

    `wall` is (x, y, half width, half height); the defender is far off unless it is placed.
    `changes` are settings of the scenario, or fields of the state.
    """
    settings = {name: value for name, value in changes.items() if name not in State._fields}
    rules = rules_of(load_scenario({**FIELD, **settings}))
    state = initial(rules, np.full(draws_at_start(rules), 0.5, np.float32))
    x, y, wide, high = wall or (0, 0, 0, 0)
    boxes = Boxes(
        np.array([[x, y]], np.float32),
        np.array([[wide, high]], np.float32),
        np.array([wall_height if wall else 0], np.int32),
    )
    state = state._replace(
        position=np.array([attacker, defender], np.float32),
        heading=np.array([EAST, EAST], np.int32),
        zone=np.array([80, 50], np.float32),
        zone_radius=np.float32(10),
        boxes=boxes,
    )
    own = {name: value for name, value in changes.items() if name in State._fields}
    return rules, look(rules, state._replace(**own))


def march(vector: np.ndarray, attackers: int) -> np.ndarray:
    """Turn to the zone, speed up, stop inside it; tag whoever is in reach."""
    rows = vector[: attackers * PER_ATTACKER].reshape(attackers, PER_ATTACKER)
    throttle, inside, can_tag, ahead, left = (rows[:, i] for i in (2, 8, 11, 12, 13))
    course = np.where(
        left < -0.25, Action.RIGHT, np.where(throttle < 0.9, Action.FASTER, Action.HOLD)
    )
    course = np.where((left > 0.25) | ((ahead < 0) & (np.abs(left) <= 0.25)), Action.LEFT, course)
    stay = np.where(throttle > 0.1, Action.SLOWER, Action.LEFT)
    return np.where(can_tag > 0, Action.TAG, np.where(inside > 0, stay, course))
