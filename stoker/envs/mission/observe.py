"""What the attackers' commander is shown: one vector within [-1, 1]."""

from __future__ import annotations

import numpy as np

from stoker.envs.mission.geometry import DIRECTIONS, HEADING, dot, length, ray_lengths
from stoker.envs.mission.rules import in_zone
from stoker.envs.mission.scenario import WIDEST_ZONE
from stoker.envs.mission.state import FULL_THROTTLE, TOP_ALTITUDE, Rules, State

RAYS = 8
PER_ATTACKER = 16 + RAYS  # the columns of `vector`, 12 single ones and two directions
SHARED = 6
RAY_OFFSETS = np.arange(RAYS) * (DIRECTIONS // RAYS)
"""Directions between an attacker's heading and each of its rays."""


def vector_size(rules: Rules) -> int:
    return PER_ATTACKER * rules.attackers + SHARED


def vector(rules: Rules, state: State) -> np.ndarray:
    """float32 [vector_size]: the attackers one after the other, zeros for who is out, then all."""
    a, s = rules.attackers, rules.scenario
    place, facing = state.position[:a], HEADING[state.heading[:a]]
    to_zone, zone_distance = _from(facing, state.zone - place)
    known = state.spotted_age < s.memory
    threat, closeness, freshness = _nearest_threat(rules, state, known)
    inside = in_zone(state)
    single = np.stack(
        [
            rules.flier[:a],
            zone_distance / s.arena,
            state.throttle[:a] / FULL_THROTTLE,
            state.altitude[:a] / TOP_ALTITUDE,
            state.shield[:a] / s.shield,
            state.stun[:a] / max(s.stun, 1),
            state.tag_wait[:a] / max(s.tag_cooldown, 1),
            state.scan_wait / max(s.scan_cooldown, 1),
            inside[:a],
            closeness,
            freshness,
            state.reaches_defender.any(-1),
        ],
        -1,
    )
    rays = _rays(rules, state)
    alive = state.alive[:a]
    own = np.concatenate([single, to_zone, threat, rays], -1) * alive[:, None]
    shared = np.array(
        [
            state.captured / s.capture_ticks,
            1 - state.tick / s.step_limit,
            state.zone_radius / (WIDEST_ZONE * s.arena),
            inside[a:].any(),
            alive.sum() / a,
            known.sum() / rules.defenders,
        ]
    )
    whole = np.concatenate([own.ravel(), shared]).astype(np.float32)
    return np.clip(whole, -1, 1, out=whole)


def _from(facing: np.ndarray, way: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The way [A, 2] as a unit's own (ahead, left) of length 1, and its length [A]."""
    distance = length(way)
    left = facing[:, 0] * way[:, 1] - facing[:, 1] * way[:, 0]
    own = np.stack([dot(facing, way), left], -1)
    return own / np.maximum(distance, 1e-6)[:, None], distance


def _nearest_threat(
    rules: Rules, state: State, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The nearest defender on the map, for each attacker: direction [A, 2], closeness, freshness.

    All are 0 where the map is empty.
    """
    a, s = rules.attackers, rules.scenario
    way = state.spotted_at - state.position[:a, None]
    nearest = np.where(known, dot(way, way), np.inf).argmin(-1)
    direction, distance = _from(HEADING[state.heading[:a]], way[np.arange(a), nearest])
    exists = known.any()
    freshness = 1 - state.spotted_age[nearest] / s.memory
    return direction * exists, np.maximum(1 - distance / s.arena, 0) * exists, freshness * exists


def _rays(rules: Rules, state: State) -> np.ndarray:
    """What an attacker feels around it, counted from its heading to the left: [A, RAYS]."""
    a, s = rules.attackers, rules.scenario
    looks = (state.heading[:a, None] + RAY_OFFSETS) % DIRECTIONS
    way = np.float32(s.ray_range) * HEADING[looks]
    return ray_lengths(state.position[:a], way, state.altitude[:a], state.boxes, s.arena)
