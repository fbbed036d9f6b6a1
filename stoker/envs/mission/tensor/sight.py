"""Who sees whom, and whom a tag would reach, in n missions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.envs.mission.sight import SLACK
from stoker.envs.mission.tensor.geometry import dot, length, sight_lines
from stoker.envs.mission.tensor.state import Missions, TensorRules


def gaps(rules: TensorRules, state: Missions) -> tuple[Tensor, Tensor]:
    """From each attacker to each defender: the way [n, A, D, 2] and its length [n, A, D]."""
    a = rules.attackers
    way = state.position[:, None, a:] - state.position[:, :a, None]
    return way, length(way)


def look(rules: TensorRules, state: Missions) -> Missions:
    """`state` with what every unit sees and reaches from where it stands."""
    a = rules.attackers
    way, distance = gaps(rules, state)
    facing = rules.headings[state.heading]
    low, high = state.altitude[:, :a, None], state.altitude[:, None, a:]
    clear = sight_lines(state.position[:, :a, None], way, torch.maximum(low, high), state.boxes)
    level = (low - high).abs() <= 1
    ahead = dot(facing[:, :a, None], way)
    by_attackers = _views(rules, slice(None, a), ahead, distance, clear, level)
    ahead = -dot(facing[:, None, a:], way).mT
    by_defenders = _views(rules, slice(a, None), ahead, distance.mT, clear.mT, level.mT)
    alive, active = state.alive, state.active
    attacks, defends = active[:, :a, None], active[:, a:, None]
    return state._replace(
        sees_defender=by_attackers[0] & attacks & alive[:, None, a:],
        reaches_defender=by_attackers[1] & attacks & active[:, None, a:],
        sees_attacker=by_defenders[0] & defends & alive[:, None, :a],
        reaches_attacker=by_defenders[1] & defends & active[:, None, :a],
    )


def _views(
    rules: TensorRules, side: slice, ahead: Tensor, distance: Tensor, clear: Tensor, level: Tensor
) -> tuple[Tensor, Tensor]:
    """What lies in the sight and in the reach of one side's N units, of M others: bool [n, N, M].

    `ahead` is the part of the way along the unit's heading.
    """
    sight_cos, tag_cos = rules.sight_cos[side, None], rules.tag_cos[side, None]
    in_sight = (distance <= rules.sight_range[side, None]) & clear
    in_sight = in_sight & (ahead >= sight_cos * distance - SLACK)
    in_reach = (distance <= rules.tag_range[side, None]) & in_sight & level
    return in_sight, in_reach & (ahead >= tag_cos * distance - SLACK)
