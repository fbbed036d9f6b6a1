"""The bird's-eye view of n missions: the attackers' maps as small images."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from stoker.envs.mission.raster import DISK, FULL, GROUNDED, HALF, PER_ALTITUDE, SIZE
from stoker.envs.mission.tensor.state import Missions, TensorRules


def raster(rules: TensorRules, state: Missions) -> Tensor:
    """uint8 [n, SIZE, SIZE, CHANNELS], y up in row 0; units are disks."""
    s, a = rules.scenario, rules.attackers
    held = HALF + (FULL - HALF) * state.captured // s.capture_ticks
    zone = _disks(rules, state.zone[:, None], state.zone_radius.square(), held[:, None])
    unit = torch.full_like(state.zone_radius, (DISK * (s.arena / SIZE)) ** 2)
    brightness = GROUNDED + PER_ALTITUDE * state.altitude[:, :a]
    alive = torch.where(state.alive[:, :a], brightness, 0)
    attackers = _disks(rules, state.position[:, :a], unit, alive)
    known = FULL * (s.memory - state.spotted_age) // s.memory
    defenders = _disks(rules, state.spotted_at, unit, known)
    return torch.stack([_boxes(rules, state), zone, attackers, defenders], -1)


def _boxes(rules: TensorRules, state: Missions) -> Tensor:
    """The obstacles, half bright if low: uint8 [n, SIZE, SIZE]."""
    x, y = _offsets(rules, state.box_centre)
    in_x, in_y = x.abs() <= state.box_half[..., :1], y.abs() <= state.box_half[..., 1:]
    pairs = zip(in_x.unbind(1), in_y.unbind(1), strict=True)
    covers = (across[:, None] & along[..., None] for across, along in pairs)
    height = state.box_height
    return _brightest(covers, torch.where(height > 1, FULL, HALF * height))


def _disks(rules: TensorRules, points: Tensor, reach: Tensor, brightness: Tensor) -> Tensor:
    """Disks around `points` [n, N, 2], `reach` [n] their radius squared: uint8 [n, SIZE, SIZE]."""
    x, y = _offsets(rules, points)
    pairs = zip(x.square().unbind(1), y.square().unbind(1), strict=True)
    covers = (across[:, None] + along[..., None] <= reach[:, None, None] for across, along in pairs)
    return _brightest(covers, brightness)


def _offsets(rules: TensorRules, points: Tensor) -> tuple[Tensor, Tensor]:
    """From `points` [n, N, 2] to each column along x, and to each row along y: [n, N, SIZE]."""
    axis = rules.pixel_axis
    return axis - points[..., :1], axis.flip(0) - points[..., 1:]


def _brightest(covers: Iterable[Tensor], brightness: Tensor) -> Tensor:
    """The brightest, of brightness [n, N], that covers each pixel: uint8 [n, SIZE, SIZE].

    `covers` are N times bool [n, SIZE, SIZE], one at a time: all at once they would fill gigabytes.
    """
    lights = brightness.byte()[..., None, None].unbind(1)
    return reduce(torch.maximum, (c * light for c, light in zip(covers, lights, strict=True)))
