"""One tick of n missions: a pure function. docs/mission.md tells the same in words."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from stoker.envs.mission.geometry import DIRECTIONS
from stoker.envs.mission.state import SUB_TICKS
from stoker.envs.mission.tensor.geometry import blocked, length
from stoker.envs.mission.tensor.orders import Orders, orders
from stoker.envs.mission.tensor.sight import gaps, look
from stoker.envs.mission.tensor.state import Missions, TensorRules


class Outcome(NamedTuple):
    """What a tick led to. `components` are weighted, in the order of COMPONENTS."""

    state: Missions
    components: Tensor  # float32 [n, len(COMPONENTS)]
    won: Tensor  # bool [n], and so on
    lost: Tensor
    out_of_time: Tensor


class _Tags(NamedTuple):
    """Who tried to tag, and who was tagged: bool [n, U] each."""

    tried: Tensor
    hit: Tensor


def step(rules: TensorRules, state: Missions, action: Tensor, uniforms: Tensor) -> Outcome:
    """The tick that `action`, int64 [n, A], and `uniforms`, float32 [n, U], lead to."""
    a, s = rules.attackers, rules.scenario
    wanted = orders(rules, state, action)
    tags = _tags(rules, state, wanted, uniforms)
    scans = wanted.scan & (state.scan_wait == 0) & state.active[:, :a]
    after = _settle(rules, state, tags, scans)
    after = _move(rules, after, wanted)
    after = look(rules, after)
    after = _spot(rules, after, scans)
    after = _hold(rules, after)
    after = after._replace(tick=state.tick + 1)
    won = after.captured >= s.capture_ticks
    lost = ~won & ~after.alive[:, :a].any(-1)
    components = _components(rules, state, after, tags.hit, won, lost)
    return Outcome(after, components, won, lost, after.tick >= s.step_limit)


def added(columns: Tensor) -> Tensor:
    """The sum [n] of columns [n, N] from left to right, so that no batch changes its rounding."""
    return reduce(torch.add, columns.unbind(-1))


def _zone_gap(rules: TensorRules, state: Missions) -> Tensor:
    """Metres from each attacker to the zone's edge, 0 inside: float32 [n, A]."""
    distance = length(state.position[:, : rules.attackers] - state.zone[:, None])
    return (distance - state.zone_radius[:, None]).clamp(min=0)


def in_zone(state: Missions) -> Tensor:
    """Active units on the ground of the zone: bool [n, U]."""
    inside = length(state.position - state.zone[:, None]) <= state.zone_radius[:, None]
    return inside & (state.altitude == 0) & state.active


def _tags(rules: TensorRules, state: Missions, wanted: Orders, uniforms: Tensor) -> _Tags:
    """Everybody tags at once: the nearest in reach, with a chance that falls with distance."""
    a = rules.attackers
    distance = gaps(rules, state)[1]
    ready = wanted.tag & (state.tag_wait == 0)
    tried, hit = [], []
    for side, reaches, away in (
        (slice(None, a), state.reaches_defender, distance),
        (slice(a, None), state.reaches_attacker, distance.mT),
    ):
        reachable = torch.where(reaches, away, torch.inf)
        tries = ready[:, side] & reaches.any(-1)
        share = torch.where(tries, reachable.amin(-1), 0) / rules.tag_range[side]
        succeeds = tries & (uniforms[:, side] >= rules.scenario.tag_falloff * share)
        others = torch.arange(reaches.shape[-1], device=reaches.device)
        chosen = reachable.argmin(-1)[..., None] == others
        hit.append((succeeds[..., None] & chosen).any(1))
        tried.append(tries)
    return _Tags(torch.cat(tried, -1), torch.cat(hit[::-1], -1))


def _settle(rules: TensorRules, state: Missions, tags: _Tags, scans: Tensor) -> Missions:
    """Shields, and all that runs down by one a tick."""
    a = rules.attackers
    attackers_left = state.shield[:, :a] - tags.hit[:, :a].int()
    stun, tag_wait, scan_wait = (
        (ticks - 1).clamp(min=0) for ticks in (state.stun, state.tag_wait, state.scan_wait)
    )
    return state._replace(
        shield=torch.cat([attackers_left, state.shield[:, a:]], -1),
        stun=torch.where(tags.hit, rules.stun, stun),
        tag_wait=torch.where(tags.tried, rules.tag_cooldown, tag_wait),
        scan_wait=torch.where(scans, rules.scenario.scan_cooldown, scan_wait),
    )


def _move(rules: TensorRules, state: Missions, wanted: Orders) -> Missions:
    """Active units take their orders; the others stop. Nobody enters an obstacle."""
    arena, boxes, active = rules.scenario.arena, state.boxes, state.active
    throttle = torch.where(active, wanted.throttle, 0)
    turn = torch.where(active, wanted.turn, 0)
    altitude = torch.where(active, wanted.altitude, state.altitude)
    stays = blocked(state.position, altitude, boxes, arena)
    altitude = torch.where(stays, state.altitude, altitude)
    stride = (rules.speed * throttle.float())[..., None]
    position, heading = state.position, state.heading
    for sub_tick in range(SUB_TICKS):
        heading = (heading + turn.sign() * (turn.abs() > sub_tick)) % DIRECTIONS
        tries = position + rules.slides * (stride * rules.headings[heading])
        stop = blocked(tries, altitude, boxes, arena)[..., None]
        slid = torch.where(stop[1], torch.where(stop[2], position, tries[2]), tries[1])
        position = torch.where(stop[0], slid, tries[0])
    return state._replace(position=position, heading=heading, throttle=throttle, altitude=altitude)


def _spot(rules: TensorRules, state: Missions, scans: Tensor) -> Missions:
    """The attackers' map: defenders that any of them sees or scans are put down afresh."""
    a, s = rules.attackers, rules.scenario
    in_range = gaps(rules, state)[1] <= s.scan_range
    scanned = in_range & scans[..., None] & state.present[:, None, a:]
    known = (state.sees_defender | scanned).any(1)
    return state._replace(
        spotted_at=torch.where(known[..., None], state.position[:, a:], state.spotted_at),
        spotted_age=torch.where(known, 0, (state.spotted_age + 1).clamp(max=s.memory)),
    )


def _hold(rules: TensorRules, state: Missions) -> Missions:
    """The zone is won tick by tick; a defender in it halts that, and an empty one slips away."""
    inside = in_zone(state)
    held, contested = inside[:, : rules.attackers].any(-1), inside[:, rules.attackers :].any(-1)
    gain = torch.where(held, (~contested).int(), -1)
    return state._replace(captured=(state.captured + gain).clamp(min=0))


def _components(
    rules: TensorRules, before: Missions, after: Missions, hit: Tensor, won: Tensor, lost: Tensor
) -> Tensor:
    """The reward's components, weighted, in the order of COMPONENTS."""
    a, s = rules.attackers, rules.scenario
    nearer = (_zone_gap(rules, before) - _zone_gap(rules, after)) * after.alive[:, :a]
    counts = [
        added(nearer) / (s.arena * after.present[:, :a].sum(-1)),
        (after.captured - before.captured) / s.capture_ticks,
        hit[:, a:].sum(-1),
        hit[:, :a].sum(-1),
        won,
        lost,
        torch.ones_like(won),
    ]
    return torch.stack([count.float() for count in counts], -1) * rules.weights
