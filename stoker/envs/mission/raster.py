"""The bird's-eye view: the attackers' map as a small image."""

from __future__ import annotations

import numpy as np

from stoker.envs.mission.state import Rules, State

SIZE = 48
CHANNELS = 4
"""Obstacles (half bright if low) · zone (brighter the longer held) · attackers (brighter the
higher) · known defenders (fading as the sighting ages)."""
SHAPE = (SIZE, SIZE, CHANNELS)
HALF, FULL = 128, 255
"""A low obstacle and a zone not yet held; a tall one, a zone held and a defender just seen."""
GROUNDED, PER_ALTITUDE = 155, 50
"""An attacker on the ground, and what each altitude adds."""
DISK = 1.2
"""The radius of a unit, in pixels."""


def raster(rules: Rules, state: State) -> np.ndarray:
    """uint8 [SIZE, SIZE, CHANNELS], y up in row 0; units are disks of at least a pixel's reach."""
    s, a = rules.scenario, rules.attackers
    pixel = s.arena / SIZE
    axis = pixel_axis(s.arena)
    centres = np.stack(np.broadcast_arrays(axis[None, :], axis[::-1, None]), -1)  # [S, S, 2]
    image = np.zeros(SHAPE, np.uint8)

    boxes = state.boxes
    inside = (np.abs(centres[:, :, None] - boxes.centre) <= boxes.half).all(-1)
    image[..., 0] = (inside * np.where(boxes.height > 1, FULL, HALF * boxes.height)).max(-1)

    way = centres - state.zone
    held = HALF + (FULL - HALF) * int(state.captured) // s.capture_ticks
    image[..., 1] = ((way * way).sum(-1) <= state.zone_radius**2) * held

    attackers = np.where(state.alive[:a], GROUNDED + PER_ALTITUDE * state.altitude[:a], 0)
    image[..., 2] = _disks(centres, state.position[:a], attackers, pixel)
    known = FULL * (s.memory - state.spotted_age) // s.memory
    image[..., 3] = _disks(centres, state.spotted_at, known, pixel)
    return image


def pixel_axis(arena: float) -> np.ndarray:
    """Where the middles of the pixels lie along x: float32 [SIZE]."""
    return (np.arange(SIZE, dtype=np.float32) + 0.5) * np.float32(arena / SIZE)


def _disks(
    centres: np.ndarray, points: np.ndarray, brightness: np.ndarray, pixel: float
) -> np.ndarray:
    """The brightest of the disks around `points` [N, 2] that cover each pixel: [S, S]."""
    way = centres[:, :, None] - points
    covers = (way * way).sum(-1) <= (DISK * pixel) ** 2
    return (covers * brightness).max(-1)
