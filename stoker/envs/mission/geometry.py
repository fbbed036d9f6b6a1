"""Directions, sight lines and rays among boxes. All float32; no angle is ever computed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DIRECTIONS = 48
"""Headings are one of these; 0 looks along x, and they go round to the left."""
HEADING = np.stack(
    [f(np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)) for f in (np.cos, np.sin)], -1
).astype(np.float32)
"""Unit vector [DIRECTIONS, 2] of each."""
UNIT_RADIUS = 1.0
FLAT = np.float32(1e-6)
"""A component of a direction that is smaller than this counts as this, to divide by."""


class Boxes(NamedTuple):
    """Obstacles: upright boxes along the axes. One that is absent has height 0, so blocks nothing.

    `centre` and `half` are float32 [O, 2]; `height` is int32 [O]: 1 can be flown over, 3 cannot.
    """

    centre: np.ndarray
    half: np.ndarray
    height: np.ndarray


def dot(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The product [...] of vectors [..., 2]."""
    return left[..., 0] * right[..., 0] + left[..., 1] * right[..., 1]


def length(vector: np.ndarray) -> np.ndarray:
    """The length [...] of vectors [..., 2]."""
    return np.sqrt(dot(vector, vector))


def bearing(vector: np.ndarray) -> np.ndarray:
    """The direction [...] nearest to each vector [..., 2]; the lower of two as near."""
    return dot(vector[..., None, :], HEADING).argmax(-1)


def blocked(point: np.ndarray, altitude: np.ndarray, boxes: Boxes, arena: float) -> np.ndarray:
    """Whether units at `point` [..., U, 2] touch an obstacle or leave the arena: bool [..., U]."""
    reach = boxes.half + UNIT_RADIUS
    touches = np.abs(point[..., :1] - boxes.centre[:, 0]) < reach[:, 0]
    touches &= np.abs(point[..., 1:] - boxes.centre[:, 1]) < reach[:, 1]
    touches &= boxes.height > altitude[:, None]
    leaves = np.abs(point - arena / 2) > arena / 2 - UNIT_RADIUS
    return touches.any(-1) | leaves[..., 0] | leaves[..., 1]


def crossing(start: np.ndarray, way: np.ndarray, boxes: Boxes) -> tuple[np.ndarray, np.ndarray]:
    """Where the line start + t way, both [..., 2], enters and leaves each box: t, twice [..., O].

    A line that misses a box leaves it before it enters it.
    """
    way = np.where(np.abs(way) < FLAT, FLAT, way)
    x, y = way[..., :1], way[..., 1:]
    middle_x = (boxes.centre[:, 0] - start[..., :1]) / x
    middle_y = (boxes.centre[:, 1] - start[..., 1:]) / y
    reach_x, reach_y = boxes.half[:, 0] / np.abs(x), boxes.half[:, 1] / np.abs(y)
    enter = np.maximum(middle_x - reach_x, middle_y - reach_y)
    return enter, np.minimum(middle_x + reach_x, middle_y + reach_y)


def sight_lines(start: np.ndarray, way: np.ndarray, above: np.ndarray, boxes: Boxes) -> np.ndarray:
    """Whether nothing higher than `above` [...] stands on the way from start, [..., 2]: [...]."""
    enter, leave = crossing(start, way, boxes)
    stands = (leave >= np.maximum(enter, 0)) & (enter <= 1) & (boxes.height > above[..., None])
    return ~stands.any(-1)


def ray_lengths(
    start: np.ndarray, way: np.ndarray, altitude: np.ndarray, boxes: Boxes, arena: float
) -> np.ndarray:
    """How far each unit [U, 2] can look along its rays [U, R, 2], as shares of them: [U, R]."""
    origin = start[:, None]
    enter, leave = crossing(origin, way, boxes)
    hits = (leave >= np.maximum(enter, 0)) & (boxes.height > altitude[:, None, None])
    nearest = np.where(hits, np.maximum(enter, 0), 1).min(-1)
    to_wall = crossing(origin, way, hall(arena))[1][..., 0]
    return np.clip(np.minimum(nearest, to_wall), 0, 1)


def hall(arena: float) -> Boxes:
    """The arena itself: whoever is inside leaves it at the wall."""
    middle = np.full((1, 2), arena / 2, np.float32)
    return Boxes(middle, middle, np.ones(1, np.int32))
