"""Directions, sight lines and rays among boxes, in n missions at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stoker.envs.mission.geometry import FLAT, UNIT_RADIUS

_FLAT = float(FLAT)


class Boxes(NamedTuple):
    """Obstacles: upright boxes along the axes. One that is absent has height 0."""

    centre: Tensor  # float32 [n, O, 2]
    half: Tensor  # float32 [n, O, 2]
    height: Tensor  # int32 [n, O]


def dot(left: Tensor, right: Tensor) -> Tensor:
    """The product [...] of vectors [..., 2]."""
    return left[..., 0] * right[..., 0] + left[..., 1] * right[..., 1]


def length(vector: Tensor) -> Tensor:
    """The length [...] of vectors [..., 2]."""
    return torch.sqrt(dot(vector, vector))


def bearing(vector: Tensor, headings: Tensor) -> Tensor:
    """The direction [...] nearest to each vector [..., 2]; the lower of two as near."""
    return dot(vector[..., None, :], headings).argmax(-1)


def nth(of: Tensor, which: Tensor) -> Tensor:
    """The entry of `of` [n, N, M, 2] that `which` [n, N] names: [n, N, 2]."""
    return torch.take_along_dim(of, which[..., None, None], 2)[:, :, 0]


def blocked(point: Tensor, altitude: Tensor, boxes: Boxes, arena: float) -> Tensor:
    """Whether units at `point` [..., n, U, 2] touch an obstacle or leave the arena: [..., n, U]."""
    centre, reach = boxes.centre[:, None], boxes.half[:, None] + UNIT_RADIUS
    touches = (point[..., :1] - centre[..., 0]).abs() < reach[..., 0]
    touches = touches & ((point[..., 1:] - centre[..., 1]).abs() < reach[..., 1])
    touches = touches & (boxes.height[:, None] > altitude[..., None])
    leaves = (point - arena / 2).abs() > arena / 2 - UNIT_RADIUS
    return touches.any(-1) | leaves[..., 0] | leaves[..., 1]


def crossing(start: Tensor, way: Tensor, boxes: Boxes) -> tuple[Tensor, Tensor]:
    """Where lines start + t way, [n, N, M, 2], enter and leave each box: t, twice [n, N, M, O].

    A line that misses a box leaves it before it enters it.
    """
    way = torch.where(way.abs() < _FLAT, _FLAT, way)
    x, y = way[..., :1], way[..., 1:]
    centre, half = boxes.centre[:, None, None], boxes.half[:, None, None]
    middle_x = (centre[..., 0] - start[..., :1]) / x
    middle_y = (centre[..., 1] - start[..., 1:]) / y
    reach_x, reach_y = half[..., 0] / x.abs(), half[..., 1] / y.abs()
    enter = torch.maximum(middle_x - reach_x, middle_y - reach_y)
    return enter, torch.minimum(middle_x + reach_x, middle_y + reach_y)


def sight_lines(start: Tensor, way: Tensor, above: Tensor, boxes: Boxes) -> Tensor:
    """Whether nothing higher than `above` [n, N, M] stands on the way from start: [n, N, M]."""
    enter, leave = crossing(start, way, boxes)
    stands = (leave >= enter.clamp(min=0)) & (enter <= 1)
    return ~(stands & (boxes.height[:, None, None] > above[..., None])).any(-1)


def ray_lengths(start: Tensor, way: Tensor, altitude: Tensor, boxes: Boxes, hall: Boxes) -> Tensor:
    """How far units [n, N, 2] can look along rays [n, N, R, 2], as shares of them: [n, N, R].

    `hall` is the arena itself, as the one box of one mission.
    """
    origin = start[:, :, None]
    enter, leave = crossing(origin, way, boxes)
    entered = enter.clamp(min=0)
    hits = (leave >= entered) & (boxes.height[:, None, None] > altitude[..., None, None])
    nearest = torch.where(hits, entered, 1).amin(-1)
    to_wall = crossing(origin, way, hall)[1][..., 0]
    return torch.minimum(nearest, to_wall).clamp(0, 1)
