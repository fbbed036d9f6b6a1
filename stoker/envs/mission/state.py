"""The state of a mission, and what a scenario fixes for all its episodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stoker.envs.mission.geometry import Boxes
from stoker.envs.mission.scenario import Scenario

FULL_THROTTLE = 3
TOP_ALTITUDE = 2


class State(NamedTuple):
    """A mission between two ticks. Units are the A attackers, then the D defenders: U of them.

    Nothing here is ever changed in place. An absent unit has `present` False, stands at the origin
    and takes no part.
    """

    tick: np.int32
    present: np.ndarray  # bool [U]
    position: np.ndarray  # float32 [U, 2]
    heading: np.ndarray  # int32 [U], of DIRECTIONS
    throttle: np.ndarray  # int32 [U], 0 to FULL_THROTTLE
    altitude: np.ndarray  # int32 [U], 0 to TOP_ALTITUDE
    shield: np.ndarray  # int32 [U], tags left to take; an attacker with none is out
    stun: np.ndarray  # int32 [U], ticks still to stand still
    tag_wait: np.ndarray  # int32 [U], ticks until it may tag again
    scan_wait: np.ndarray  # int32 [A]
    boxes: Boxes  # O obstacles
    zone: np.ndarray  # float32 [2]
    zone_radius: np.float32
    captured: np.int32  # ticks held
    patrol: np.ndarray  # int32 [D], direction from the zone at which each began
    spotted_at: np.ndarray  # float32 [D, 2], where the attackers last knew each defender
    spotted_age: np.ndarray  # int32 [D], ticks since; `memory` where unknown
    sees_defender: np.ndarray  # bool [A, D], as the last tick ended
    reaches_defender: np.ndarray  # bool [A, D], those that a tag would reach now
    sees_attacker: np.ndarray  # bool [D, A], likewise
    reaches_attacker: np.ndarray  # bool [D, A]

    @property
    def alive(self) -> np.ndarray:
        """Present and not out: bool [U]."""
        return self.present & (self.shield > 0)

    @property
    def active(self) -> np.ndarray:
        """Alive and not stunned: bool [U]."""
        return self.alive & (self.stun == 0)


class Rules(NamedTuple):
    """A scenario as arrays. Cosines are of half an angle of view."""

    scenario: Scenario
    attackers: int
    defenders: int
    obstacles: int
    flier: np.ndarray  # bool [U]
    speed: np.ndarray  # float32 [U], metres a sub-tick at throttle 1
    sight_range: np.ndarray  # float32 [U], and so on
    sight_cos: np.ndarray
    tag_range: np.ndarray
    tag_cos: np.ndarray
    tag_cooldown: np.ndarray  # int32 [U]
    stun: np.ndarray  # int32 [U]
    weights: np.ndarray  # float32 [len(COMPONENTS)]

    @property
    def units(self) -> int:
        return self.attackers + self.defenders


SUB_TICKS = 4
"""Movements of each tick."""


def rules_of(s: Scenario) -> Rules:
    """The arrays of a scenario, with room for as many units and obstacles as it may draw.

    There is room for one of each at least, so that no axis is empty.
    """
    a, d = s.attackers[1], max(s.defenders[1], 1)
    flier = np.arange(a + d) < s.fliers
    is_attacker = np.arange(a + d) < a

    def by_side(attacker: float, defender: float) -> np.ndarray:
        return np.where(is_attacker, attacker, defender).astype(np.float32)

    def cosine(degrees: float) -> float:
        return float(np.cos(np.radians(degrees / 2)))

    top_speed = np.where(flier, s.flier_speed, by_side(s.ground_speed, s.defender_speed))
    return Rules(
        scenario=s,
        attackers=a,
        defenders=d,
        obstacles=max(s.obstacles[1], 1),
        flier=flier,
        speed=(top_speed / (SUB_TICKS * FULL_THROTTLE)).astype(np.float32),
        sight_range=by_side(s.sight_range, s.defender_sight_range),
        sight_cos=by_side(cosine(s.sight_angle), cosine(s.defender_sight_angle)),
        tag_range=by_side(s.tag_range, s.defender_tag_range),
        tag_cos=by_side(cosine(s.tag_angle), cosine(s.defender_tag_angle)),
        tag_cooldown=by_side(s.tag_cooldown, s.defender_tag_cooldown).astype(np.int32),
        stun=by_side(s.stun, s.defender_stun).astype(np.int32),
        weights=np.array(list(vars(s.rewards).values()), np.float32),
    )
