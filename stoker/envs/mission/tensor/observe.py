"""What the commanders of n missions are shown: a vector within [-1, 1] each."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.envs.mission.geometry import DIRECTIONS
from stoker.envs.mission.scenario import WIDEST_ZONE
from stoker.envs.mission.state import FULL_THROTTLE, TOP_ALTITUDE
from stoker.envs.mission.tensor.geometry import dot, length, nth, ray_lengths
from stoker.envs.mission.tensor.rules import in_zone
from stoker.envs.mission.tensor.state import Missions, TensorRules


def vector(rules: TensorRules, state: Missions) -> Tensor:
    """float32 [n, vector_size]: attackers one after the other, zeros for who is out, then all."""
    a, s = rules.attackers, rules.scenario
    place, facing = state.position[:, :a], rules.headings[state.heading[:, :a]]
    to_zone, zone_distance = _from(facing, state.zone[:, None] - place)
    known = state.spotted_age < s.memory
    threat, closeness, freshness = _nearest_threat(rules, state, facing, known)
    inside = in_zone(state)
    single = [
        rules.flier[:a].expand_as(closeness),
        zone_distance / s.arena,
        state.throttle[:, :a] / FULL_THROTTLE,
        state.altitude[:, :a] / TOP_ALTITUDE,
        state.shield[:, :a] / s.shield,
        state.stun[:, :a] / max(s.stun, 1),
        state.tag_wait[:, :a] / max(s.tag_cooldown, 1),
        state.scan_wait / max(s.scan_cooldown, 1),
        inside[:, :a],
        closeness,
        freshness,
        state.reaches_defender.any(-1),
    ]
    singles = torch.stack([column.float() for column in single], -1)
    alive = state.alive[:, :a]
    own = torch.cat([singles, to_zone, threat, _rays(rules, state)], -1) * alive[..., None]
    shared = [
        state.captured / s.capture_ticks,
        1 - state.tick / s.step_limit,
        state.zone_radius / (WIDEST_ZONE * s.arena),
        inside[:, a:].any(-1),
        alive.sum(-1) / a,
        known.sum(-1) / rules.defenders,
    ]
    whole = torch.cat([own.flatten(1), torch.stack([of.float() for of in shared], -1)], -1)
    return whole.clamp(-1, 1)


def _from(facing: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    """The way [n, A, 2] as a unit's own (ahead, left) of length 1, and its length [n, A]."""
    distance = length(way)
    left = facing[..., 0] * way[..., 1] - facing[..., 1] * way[..., 0]
    own = torch.stack([dot(facing, way), left], -1)
    return own / distance.clamp(min=1e-6)[..., None], distance


def _nearest_threat(
    rules: TensorRules, state: Missions, facing: Tensor, known: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest defender on the map, for each attacker: direction, closeness, freshness.

    [n, A, 2], [n, A] and [n, A]; all are 0 where the map is empty.
    """
    a, s = rules.attackers, rules.scenario
    way = state.spotted_at[:, None] - state.position[:, :a, None]
    nearest = torch.where(known[:, None], dot(way, way), torch.inf).argmin(-1)
    direction, distance = _from(facing, nth(way, nearest))
    exists = known.any(-1, keepdim=True)
    closeness = (1 - distance / s.arena).clamp(min=0)
    freshness = 1 - state.spotted_age.gather(1, nearest) / s.memory
    return direction * exists[..., None], closeness * exists, freshness * exists


def _rays(rules: TensorRules, state: Missions) -> Tensor:
    """What an attacker feels around it, counted from its heading to the left: [n, A, RAYS]."""
    a, s = rules.attackers, rules.scenario
    looks = (state.heading[:, :a, None] + rules.ray_offsets) % DIRECTIONS
    way = s.ray_range * rules.headings[looks]
    return ray_lengths(state.position[:, :a], way, state.altitude[:, :a], state.boxes, rules.hall)
