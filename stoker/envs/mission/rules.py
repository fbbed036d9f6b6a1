"""One tick of a mission: a pure function. docs/mission.md tells the same in words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stoker.envs.mission.geometry import DIRECTIONS, HEADING, blocked, length
from stoker.envs.mission.orders import Orders, orders
from stoker.envs.mission.sight import gaps, look
from stoker.envs.mission.state import SUB_TICKS, Rules, State

SLIDES = np.array([[[1, 1]], [[1, 0]], [[0, 1]]], np.float32)
"""What a unit tries: all of its way, else along x alone, else along y alone."""


class Outcome(NamedTuple):
    """What a tick led to. `components` are weighted, float32, in the order of COMPONENTS."""

    state: State
    components: np.ndarray
    won: bool
    lost: bool
    out_of_time: bool


class _Tags(NamedTuple):
    """Who tried to tag, and who was tagged: bool [U] each."""

    tried: np.ndarray
    hit: np.ndarray


def step(rules: Rules, state: State, action: np.ndarray, uniforms: np.ndarray) -> Outcome:
    """The tick that `action`, int [A], and `uniforms`, float32 [U] in [0, 1), lead to."""
    a, s = rules.attackers, rules.scenario
    wanted = orders(rules, state, action)
    tags = _tags(rules, state, wanted, uniforms)
    scans = wanted.scan & (state.scan_wait == 0) & state.active[:a]
    after = _settle(rules, state, tags, scans)
    after = _move(rules, after, wanted)
    after = look(rules, after)
    after = _spot(rules, after, scans)
    after = _hold(rules, after)
    after = after._replace(tick=state.tick + np.int32(1))
    won = bool(after.captured >= s.capture_ticks)
    lost = not won and not after.alive[:a].any()
    components = _components(rules, state, after, tags.hit, won, lost)
    return Outcome(after, components, won, lost, bool(after.tick >= s.step_limit))


def _zone_gap(rules: Rules, state: State) -> np.ndarray:
    """Metres from each attacker to the zone's edge, 0 inside: float32 [A]."""
    distance = length(state.position[: rules.attackers] - state.zone)
    return np.maximum(distance - state.zone_radius, 0)


def in_zone(state: State) -> np.ndarray:
    """Active units on the ground of the zone: bool [U]."""
    inside = length(state.position - state.zone) <= state.zone_radius
    return inside & (state.altitude == 0) & state.active


def _tags(rules: Rules, state: State, wanted: Orders, uniforms: np.ndarray) -> _Tags:
    """Everybody tags at once: the nearest in reach, with a chance that falls with distance."""
    a = rules.attackers
    distance = gaps(rules, state)[1]
    ready = wanted.tag & (state.tag_wait == 0)
    tried, hit = [], []
    for side, reaches, away in (
        (slice(None, a), state.reaches_defender, distance),
        (slice(a, None), state.reaches_attacker, distance.T),
    ):
        reachable = np.where(reaches, away, np.inf)
        tries = ready[side] & reaches.any(-1)
        share = np.where(tries, reachable.min(-1), 0) / rules.tag_range[side]
        succeeds = tries & (uniforms[side] >= rules.scenario.tag_falloff * share)
        chosen = reachable.argmin(-1)[:, None] == np.arange(reaches.shape[1])
        hit.append((succeeds[:, None] & chosen).any(0))
        tried.append(tries)
    return _Tags(np.concatenate(tried), np.concatenate(hit[::-1]))


def _settle(rules: Rules, state: State, tags: _Tags, scans: np.ndarray) -> State:
    """Shields, and all that runs down by one a tick."""
    is_attacker = np.arange(rules.units) < rules.attackers
    cooldown = np.int32(rules.scenario.scan_cooldown)
    return state._replace(
        shield=state.shield - (tags.hit & is_attacker),
        stun=np.where(tags.hit, rules.stun, np.maximum(state.stun - 1, 0)),
        tag_wait=np.where(tags.tried, rules.tag_cooldown, np.maximum(state.tag_wait - 1, 0)),
        scan_wait=np.where(scans, cooldown, np.maximum(state.scan_wait - 1, 0)),
    )


def _move(rules: Rules, state: State, wanted: Orders) -> State:
    """Active units take their orders; the others stop. Nobody enters an obstacle."""
    arena, boxes, active = rules.scenario.arena, state.boxes, state.active
    throttle = np.where(active, wanted.throttle, 0)
    turn = np.where(active, wanted.turn, 0)
    altitude = np.where(active, wanted.altitude, state.altitude)
    altitude = np.where(blocked(state.position, altitude, boxes, arena), state.altitude, altitude)
    stride = (rules.speed * throttle.astype(np.float32))[:, None]
    position, heading = state.position, state.heading
    for sub_tick in range(SUB_TICKS):
        heading = (heading + np.sign(turn) * (np.abs(turn) > sub_tick)) % DIRECTIONS
        tries = position + SLIDES * (stride * HEADING[heading])
        stop = blocked(tries, altitude, boxes, arena)[..., None]
        slid = np.where(stop[1], np.where(stop[2], position, tries[2]), tries[1])
        position = np.where(stop[0], slid, tries[0])
    return state._replace(position=position, heading=heading, throttle=throttle, altitude=altitude)


def _spot(rules: Rules, state: State, scans: np.ndarray) -> State:
    """The attackers' map: defenders that any of them sees or scans are put down afresh."""
    a, s = rules.attackers, rules.scenario
    scanned = (gaps(rules, state)[1] <= s.scan_range) & scans[:, None] & state.present[a:]
    known = (state.sees_defender | scanned).any(0)
    return state._replace(
        spotted_at=np.where(known[:, None], state.position[a:], state.spotted_at),
        spotted_age=np.where(known, 0, np.minimum(state.spotted_age + 1, s.memory)),
    )


def _hold(rules: Rules, state: State) -> State:
    """The zone is won tick by tick; a defender in it halts that, and an empty one slips away."""
    inside = in_zone(state)
    held, contested = inside[: rules.attackers].any(), inside[rules.attackers :].any()
    gain = np.where(held, ~contested, -1)
    return state._replace(captured=np.int32(np.maximum(state.captured + gain, 0)))


def _components(
    rules: Rules, before: State, after: State, hit: np.ndarray, won: bool, lost: bool
) -> np.ndarray:
    """The reward's components, weighted, in the order of COMPONENTS."""
    a, s = rules.attackers, rules.scenario
    nearer = (_zone_gap(rules, before) - _zone_gap(rules, after)) * after.alive[:a]
    counts = np.array(
        [
            nearer.sum() / (s.arena * after.present[:a].sum()),
            (after.captured - before.captured) / s.capture_ticks,
            hit[a:].sum(),
            hit[:a].sum(),
            won,
            lost,
            1,
        ],
        np.float32,
    )
    return counts * rules.weights
