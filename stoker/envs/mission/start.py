"""The first state of an episode, from a fixed number of uniforms."""

from __future__ import annotations

import numpy as np

from stoker.envs.mission.geometry import DIRECTIONS, HEADING, UNIT_RADIUS, Boxes, bearing, length
from stoker.envs.mission.scenario import Scenario
from stoker.envs.mission.sight import look
from stoker.envs.mission.state import Rules, State

LOW, TALL = 1, 3
SPREAD = 8
"""Attackers start with a heading that is off the zone by so many directions at most."""
CLEARANCE = 4.0
"""No obstacle comes nearer than this to where a unit starts, or to the zone."""
ZONES = ((0.68, 0.16), (0.2, 0.6))
ATTACKERS = ((0.05, 0.08), (0.05, 0.9))
OBSTACLES = ((0.2, 0.75), (0.05, 0.9))
"""Where each may lie before the arena is turned: lowest and extent along x, then y, as shares."""


def draws_at_start(rules: Rules) -> int:
    """How many uniforms `initial` takes."""
    return 9 + 3 * rules.attackers + 2 * rules.defenders + 5 * rules.obstacles


def initial(rules: Rules, uniforms: np.ndarray) -> State:
    """The state that `uniforms`, float32 [draws_at_start(rules)] in [0, 1), lead to."""
    s, a, d, o = rules.scenario, rules.attackers, rules.defenders, rules.obstacles
    world, of_attackers, of_defenders, of_boxes = np.split(uniforms, np.cumsum([9, 3 * a, 2 * d]))
    attacker_draws, defender_draws = of_attackers.reshape(a, 3), of_defenders.reshape(d, 2)
    ranges = (s.attackers, s.defenders, s.obstacles)
    n_attackers, n_defenders, n_boxes = (_pick(world[i], *ranges[i]) for i in range(3))
    turn = world[3:6] < 0.5

    zone = _turned(s.arena * _within(ZONES, world[6:8]), turn, s.arena)
    zone_radius = np.float32(_between(world[8], *s.zone_radius))

    (left, width), (bottom, height) = ATTACKERS
    column = left + width * attacker_draws[:, 0]
    row = bottom + height * (np.arange(a, dtype=np.float32) + attacker_draws[:, 1]) / a
    attackers = _turned(s.arena * np.stack([column, row], -1), turn, s.arena)

    share = (np.arange(d, dtype=np.float32) + defender_draws[:, 0]) / d
    patrol = _pick(share, 0, DIRECTIONS - 1)
    ring = zone + np.float32(s.patrol_radius) * HEADING[patrol]
    defenders = np.clip(ring, 2 * UNIT_RADIUS, s.arena - 2 * UNIT_RADIUS)

    starts = np.concatenate([attackers, defenders])
    present = np.concatenate([np.arange(a) < n_attackers, np.arange(d) < n_defenders])
    towards_zone = bearing(zone - attackers) + _pick(attacker_draws[:, 2], -SPREAD, SPREAD)
    anywhere = _pick(defender_draws[:, 1], 0, DIRECTIONS - 1)
    headings = np.concatenate([towards_zone % DIRECTIONS, anywhere]).astype(np.int32)
    boxes = _boxes(s, of_boxes.reshape(o, 5), turn)
    keeps = (np.arange(o) < n_boxes) & _far(boxes, zone[None], zone_radius) & _far(boxes, starts, 0)

    none = np.zeros(a + d, np.int32)
    state = State(
        tick=np.int32(0),
        present=present,
        position=starts * present[:, None],
        heading=headings * present,
        throttle=none,
        altitude=none,
        shield=np.full(a + d, s.shield, np.int32),
        stun=none,
        tag_wait=none,
        scan_wait=none[:a],
        boxes=_kept(boxes, keeps),
        zone=zone,
        zone_radius=zone_radius,
        captured=np.int32(0),
        patrol=patrol,
        spotted_at=np.zeros((d, 2), np.float32),
        spotted_age=np.full(d, s.memory, np.int32),
        sees_defender=np.zeros((a, d), bool),
        reaches_defender=np.zeros((a, d), bool),
        sees_attacker=np.zeros((d, a), bool),
        reaches_attacker=np.zeros((d, a), bool),
    )
    return look(rules, state)


def _between(uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.float32(low) + np.float32(high - low) * uniform


def _within(area: tuple[tuple[float, float], ...], uniforms: np.ndarray) -> np.ndarray:
    """Points [..., 2] of an area, from as many uniforms."""
    lowest, extent = np.array(area, np.float32).T
    return lowest + extent * uniforms


def _pick(uniform: np.ndarray, low: int, high: int) -> np.ndarray:
    """A whole number from low to high, each as likely."""
    above = np.floor(uniform * np.float32(high - low + 1)).astype(np.int32)
    return low + np.minimum(above, np.int32(high - low))


def _turned(point: np.ndarray, turn: np.ndarray, arena: float) -> np.ndarray:
    """`point` [..., 2] in one of the square's eight symmetries: mirror x, mirror y, swap them."""
    mirrored = np.where(turn[:2], np.float32(arena) - point, point)
    return mirrored[..., ::-1] if turn[2] else mirrored


def _boxes(s: Scenario, draws: np.ndarray, turn: np.ndarray) -> Boxes:
    """All obstacles that could be there, from their draws [O, 5]."""
    half = _between(draws[:, 2:4], *s.obstacle_half)
    height = np.where(draws[:, 4] < s.tall_share, TALL, LOW).astype(np.int32)
    centre = _turned(s.arena * _within(OBSTACLES, draws[:, :2]), turn, s.arena)
    return Boxes(centre, half[:, ::-1] if turn[2] else half, height)


def _kept(boxes: Boxes, keeps: np.ndarray) -> Boxes:
    """Those that `keeps`, bool [O], names; the others become zeros."""
    here = keeps[:, None]
    return Boxes(boxes.centre * here, boxes.half * here, boxes.height * keeps)


def _far(boxes: Boxes, points: np.ndarray, radius: float | np.float32) -> np.ndarray:
    """Which boxes leave room for circles around all `points` [N, 2]: bool [O]."""
    apart = np.maximum(np.abs(points - boxes.centre[:, None]) - boxes.half[:, None], 0)
    return np.asarray((length(apart) >= radius + CLEARANCE).all(-1))
