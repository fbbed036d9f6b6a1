"""The bird's-eye view: the attackers' map as a small image."""

from __future__ import annotations

import numpy as np

from stoker.envs.mission.state import Rules, State

SIZE = 48
CHANNELS = 4
"""Obstacles (half bright if low) · zone (brighter the longer held) · attackers (brighter the
higher) · known defenders (fading as the sighting ages)."""
SHAPE = (SIZE, SIZE, CHANNELS)


def raster(rules: Rules, state: State) -> np.ndarray:
    """uint8 [SIZE, SIZE, CHANNELS], y up in row 0; units are disks of at least a pixel's reach."""
    s, a = rules.scenario, rules.attackers
    pixel = s.arena / SIZE
    axis = (np.arange(SIZE, dtype=np.float32) + 0.5) * np.float32(pixel)
    centres = np.stack(np.broadcast_arrays(axis[None, :], axis[::-1, None]), -1)  # [S, S, 2]
    image = np.zeros(SHAPE, np.uint8)

    boxes = state.boxes
    inside = (np.abs(centres[:, :, None] - boxes.centre) <= boxes.half).all(-1)
    image[..., 0] = (inside * np.where(boxes.height > 1, 255, 128 * boxes.height)).max(-1)

    way = centres - state.zone
    held = 128 + 127 * int(state.captured) // s.capture_ticks
    image[..., 1] = ((way * way).sum(-1) <= state.zone_radius**2) * held

    attackers = np.where(state.alive[:a], 155 + 50 * state.altitude[:a], 0)
    image[..., 2] = _disks(centres, state.position[:a], attackers, pixel)
    known = 255 * (s.memory - state.spotted_age) // s.memory
    image[..., 3] = _disks(centres, state.spotted_at, known, pixel)
    return image


def _disks(
    centres: np.ndarray, points: np.ndarray, brightness: np.ndarray, pixel: float
) -> np.ndarray:
    """The brightest of the disks around `points` [N, 2] that cover each pixel: [S, S]."""
    way = centres[:, :, None] - points
    covers = (way * way).sum(-1) <= (1.2 * pixel) ** 2
    return (covers * brightness).max(-1)
