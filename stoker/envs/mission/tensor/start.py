"""The first states of n episodes, from a fixed number of uniforms each."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.envs.mission.geometry import DIRECTIONS, UNIT_RADIUS
from stoker.envs.mission.scenario import Scenario
from stoker.envs.mission.start import ATTACKERS, CLEARANCE, LOW, OBSTACLES, SPREAD, TALL, ZONES
from stoker.envs.mission.tensor.geometry import Boxes, bearing, length
from stoker.envs.mission.tensor.sight import look
from stoker.envs.mission.tensor.state import Missions, TensorRules


def initial(rules: TensorRules, uniforms: Tensor) -> Missions:
    """The states that `uniforms`, float32 [n, draws_at_start(rules)] in [0, 1), lead to."""
    s, a, d, o = rules.scenario, rules.attackers, rules.defenders, rules.obstacles
    world, of_attackers, of_defenders, of_boxes = uniforms.split([9, 3 * a, 2 * d, 5 * o], -1)
    attacker_draws = of_attackers.unflatten(1, (a, 3))
    defender_draws = of_defenders.unflatten(1, (d, 2))
    ranges = (s.attackers, s.defenders, s.obstacles)
    n_attackers, n_defenders, n_boxes = (_pick(world[:, i, None], *ranges[i]) for i in range(3))
    turn = world[:, None, 3:6] < 0.5
    attacker, defender, obstacle = (torch.arange(k, device=uniforms.device) for k in (a, d, o))

    zone = _turned(s.arena * _within(ZONES, world[:, None, 6:8]), turn, s.arena)
    zone_radius = _between(world[:, 8], *s.zone_radius)

    (left, width), (bottom, height) = ATTACKERS
    column = left + width * attacker_draws[..., 0]
    row = bottom + height * (attacker + attacker_draws[..., 1]) / a
    attackers = _turned(s.arena * torch.stack([column, row], -1), turn, s.arena)

    share = (defender + defender_draws[..., 0]) / d
    patrol = _pick(share, 0, DIRECTIONS - 1)
    ring = zone + s.patrol_radius * rules.headings[patrol]
    defenders = ring.clamp(2 * UNIT_RADIUS, s.arena - 2 * UNIT_RADIUS)

    starts = torch.cat([attackers, defenders], 1)
    present = torch.cat([attacker < n_attackers, defender < n_defenders], -1)
    off = _pick(attacker_draws[..., 2], -SPREAD, SPREAD)
    towards_zone = (bearing(zone - attackers, rules.headings) + off) % DIRECTIONS
    anywhere = _pick(defender_draws[..., 1], 0, DIRECTIONS - 1)
    headings = torch.cat([towards_zone.int(), anywhere], -1)
    boxes = _boxes(s, of_boxes.unflatten(1, (o, 5)), turn)
    keeps = (obstacle < n_boxes) & _far(boxes, zone, zone_radius[:, None]) & _far(boxes, starts, 0)

    def none(*tail: int) -> Tensor:
        return torch.zeros(len(uniforms), *tail, dtype=torch.int32, device=uniforms.device)

    unseen = none(a, d).bool()
    state = Missions(
        tick=none(),
        present=present,
        position=starts * present[..., None],
        heading=headings * present,
        throttle=none(a + d),
        altitude=none(a + d),
        shield=torch.full_like(headings, s.shield),
        stun=none(a + d),
        tag_wait=none(a + d),
        scan_wait=none(a),
        box_centre=boxes.centre * keeps[..., None],
        box_half=boxes.half * keeps[..., None],
        box_height=boxes.height * keeps,
        zone=zone[:, 0],
        zone_radius=zone_radius,
        captured=none(),
        patrol=patrol,
        spotted_at=torch.zeros_like(defenders),
        spotted_age=torch.full_like(patrol, s.memory),
        sees_defender=unseen,
        reaches_defender=unseen,
        sees_attacker=unseen.mT,
        reaches_attacker=unseen.mT,
    )
    return look(rules, state)


def _between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform


def _within(area: tuple[tuple[float, float], ...], uniforms: Tensor) -> Tensor:
    """Points [..., 2] of an area, from as many uniforms."""
    axes = zip(area, uniforms.unbind(-1), strict=True)
    return torch.stack([lowest + extent * uniform for (lowest, extent), uniform in axes], -1)


def _pick(uniform: Tensor, low: int, high: int) -> Tensor:
    """A whole number from low to high, each as likely: int32."""
    above = (uniform * (high - low + 1)).floor().int()
    return low + above.clamp(max=high - low)


def _turned(point: Tensor, turn: Tensor, arena: float) -> Tensor:
    """`point` [n, N, 2] in one of the square's eight symmetries: mirror x, mirror y, swap them."""
    mirrored = torch.where(turn[..., :2], arena - point, point)
    return _swapped(mirrored, turn)


def _swapped(pair: Tensor, turn: Tensor) -> Tensor:
    return torch.where(turn[..., 2:], pair.flip(-1), pair)


def _boxes(s: Scenario, draws: Tensor, turn: Tensor) -> Boxes:
    """All obstacles that could be there, from their draws [n, O, 5]."""
    half = _between(draws[..., 2:4], *s.obstacle_half)
    height = torch.where(draws[..., 4] < s.tall_share, TALL, LOW).int()
    centre = _turned(s.arena * _within(OBSTACLES, draws[..., :2]), turn, s.arena)
    return Boxes(centre, _swapped(half, turn), height)


def _far(boxes: Boxes, points: Tensor, radius: Tensor | float) -> Tensor:
    """Which boxes leave room for circles around all `points` [n, N, 2]: bool [n, O].

    `radius` is one for all, or one for each mission [n, 1].
    """
    apart = ((points[:, None] - boxes.centre[:, :, None]).abs() - boxes.half[:, :, None]).clamp(
        min=0
    )
    nearest = length(apart).amin(-1)
    return nearest >= radius + CLEARANCE
