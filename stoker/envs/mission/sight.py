"""Who sees whom, and whom a tag would reach."""

from __future__ import annotations

import numpy as np

from stoker.envs.mission.geometry import HEADING, dot, length, sight_lines
from stoker.envs.mission.state import Rules, State

SLACK = 1e-4
"""Metres by which rounding may take a target out of a view that includes it."""


def gaps(rules: Rules, state: State) -> tuple[np.ndarray, np.ndarray]:
    """From each attacker to each defender: the way [A, D, 2] and its length [A, D]."""
    a = rules.attackers
    way = state.position[a:] - state.position[:a, None]
    return way, length(way)


def look(rules: Rules, state: State) -> State:
    """`state` with what every unit sees and reaches from where it stands."""
    a = rules.attackers
    way, distance = gaps(rules, state)
    facing = HEADING[state.heading]
    above = np.maximum(state.altitude[:a, None], state.altitude[a:])
    clear = sight_lines(state.position[:a, None], way, above, state.boxes)
    level = np.abs(state.altitude[:a, None] - state.altitude[a:]) <= 1
    by_attackers = _views(rules, slice(None, a), dot(facing[:a, None], way), distance, clear, level)
    by_defenders = _views(
        rules, slice(a, None), -dot(facing[a:], way).T, distance.T, clear.T, level.T
    )
    alive, active = state.alive, state.active
    return state._replace(
        sees_defender=by_attackers[0] & active[:a, None] & alive[a:],
        reaches_defender=by_attackers[1] & active[:a, None] & active[a:],
        sees_attacker=by_defenders[0] & active[a:, None] & alive[:a],
        reaches_attacker=by_defenders[1] & active[a:, None] & active[:a],
    )


def _views(
    rules: Rules,
    side: slice,
    ahead: np.ndarray,
    distance: np.ndarray,
    clear: np.ndarray,
    level: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """What lies in the sight and in the reach of one side's N units, of M others: bool [N, M].

    `ahead` is the part of the way along the unit's heading.
    """
    sight_cos, tag_cos = rules.sight_cos[side, None], rules.tag_cos[side, None]
    in_sight = (distance <= rules.sight_range[side, None]) & clear
    in_sight &= ahead >= sight_cos * distance - SLACK
    in_reach = (distance <= rules.tag_range[side, None]) & in_sight & level
    in_reach &= ahead >= tag_cos * distance - SLACK
    return in_sight, in_reach
