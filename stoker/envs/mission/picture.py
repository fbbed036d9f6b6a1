"""A picture of a mission for people, in plain NumPy."""

from __future__ import annotations

import numpy as np

from stoker.envs.mission.geometry import HEADING
from stoker.envs.mission.state import Rules, State

SIZE = 480
BAR = 16
"""Pixels of the bars above the map: the zone held (left), the time left (right)."""
_FINE = 2  # drawn this much larger, then averaged, for smooth edges

_GROUND, _GRID = (226, 222, 206), (214, 210, 192)
_LOW, _TALL, _SHADOW = (168, 160, 140), (104, 100, 98), (150, 146, 130)
_ZONE, _HELD = (110, 168, 96), (40, 120, 60)
_DEFENDER, _ATTACKER, _FLIER = (192, 57, 43), (36, 92, 160), (20, 150, 190)
_OUT, _BACK, _WHITE = (120, 120, 120), (60, 62, 66), (250, 250, 250)


class _Canvas:
    """Colours laid over one another at points of the arena; y points up."""

    def __init__(self, arena: float) -> None:
        n = SIZE * _FINE
        self.scale = arena / n
        axis = ((np.arange(n) + 0.5) * self.scale).astype(np.float32)
        self.x, self.y = axis[None, :], axis[::-1, None]
        self.pixels = np.empty((n, n, 3), np.float32)
        self.pixels[:] = _GROUND

    def around(self, at: np.ndarray, reach: float) -> tuple[slice, slice]:
        """Rows and columns within `reach` metres of a point."""
        n = len(self.pixels)
        column, row = at[0] / self.scale, n - at[1] / self.scale
        r = reach / self.scale + 2
        rows, columns = (
            slice(int(np.clip(c - r, 0, n)), int(np.clip(c + r, 0, n))) for c in (row, column)
        )
        return rows, columns

    def blend(
        self,
        where: tuple[slice, slice],
        mask: np.ndarray,
        colour: tuple[int, int, int],
        opacity: float = 1.0,
    ) -> None:
        strength = (opacity * mask)[..., None]
        self.pixels[where] += strength * (np.array(colour, np.float32) - self.pixels[where])

    def offsets(
        self, at: np.ndarray, reach: float
    ) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
        """The pixels around a point, and how far right and up of it they lie."""
        where = self.around(at, reach)
        return where, self.x[:, where[1]] - at[0], self.y[where[0]] - at[1]

    def disk(
        self,
        at: np.ndarray,
        radius: float,
        colour: tuple[int, int, int],
        opacity: float = 1.0,
        hole: float = 0.0,
    ) -> None:
        where, dx, dy = self.offsets(at, radius)
        square = dx * dx + dy * dy
        self.blend(where, (square <= radius**2) & (square >= hole**2), colour, opacity)

    def wedge(
        self,
        at: np.ndarray,
        facing: np.ndarray,
        reach: float,
        cosine: float,
        colour: tuple[int, int, int],
        opacity: float,
    ) -> None:
        where, dx, dy = self.offsets(at, reach)
        distance = np.sqrt(dx * dx + dy * dy)
        mask = (distance <= reach) & (dx * facing[0] + dy * facing[1] >= cosine * distance)
        self.blend(where, mask * (1 - distance / (1.1 * reach)), colour, opacity)

    def arrow(
        self, at: np.ndarray, facing: np.ndarray, size: float, colour: tuple[int, int, int]
    ) -> None:
        """A pointed dart with a notched tail."""
        where, dx, dy = self.offsets(at, 1.5 * size)
        ahead = dx * facing[0] + dy * facing[1]
        aside = np.abs(dy * facing[0] - dx * facing[1])
        front = aside <= (size - ahead) * 0.5
        back = ahead >= -0.8 * size + 0.6 * np.maximum(0, 0.7 * size - aside)
        self.blend(where, front & back, colour)

    def box(
        self,
        at: np.ndarray,
        half: np.ndarray,
        colour: tuple[int, int, int],
        opacity: float = 1.0,
    ) -> None:
        where, dx, dy = self.offsets(at, float(half.max()))
        self.blend(where, (np.abs(dx) <= half[0]) & (np.abs(dy) <= half[1]), colour, opacity)

    def image(self) -> np.ndarray:
        n = SIZE
        fine = self.pixels.reshape(n, _FINE, n, _FINE, 3).mean((1, 3))
        return np.clip(fine + 0.5, 0, 255).astype(np.uint8)


def picture(rules: Rules, state: State) -> np.ndarray:
    """uint8 [BAR + SIZE, SIZE, 3]."""
    canvas = _Canvas(rules.scenario.arena)
    _ground(canvas, rules, state)
    units = np.flatnonzero(state.present).tolist()
    for unit in units:
        _view(canvas, rules, state, unit)
    for unit in units:
        _unit(canvas, rules, state, unit)
    return np.concatenate([_bars(rules, state), canvas.image()])


def _ground(canvas: _Canvas, rules: Rules, state: State) -> None:
    arena = rules.scenario.arena
    everywhere = (slice(None), slice(None))
    near_line = (canvas.x % (arena / 10) < 0.003 * arena) | (
        canvas.y % (arena / 10) < 0.003 * arena
    )
    canvas.blend(everywhere, near_line, _GRID)
    share = float(state.captured) / rules.scenario.capture_ticks
    radius = float(state.zone_radius)
    canvas.disk(state.zone, radius, _ZONE, 0.35)
    canvas.disk(state.zone, radius * share**0.5, _HELD, 0.6)
    canvas.disk(state.zone, radius, _HELD, 1.0, hole=radius - 0.006 * arena)
    boxes = state.boxes
    for i in np.flatnonzero(boxes.height):
        tall = boxes.height[i] > 1
        drop = np.array([1, -1], np.float32) * (0.018 if tall else 0.008) * arena
        canvas.box(boxes.centre[i] + drop, boxes.half[i], _SHADOW, 0.6)
        canvas.box(boxes.centre[i], boxes.half[i], _TALL if tall else _LOW)
        canvas.box(boxes.centre[i], boxes.half[i] - 0.008 * arena, _WHITE, 0.12)


def _view(canvas: _Canvas, rules: Rules, state: State, unit: int) -> None:
    """What an active unit watches, and more strongly what it reaches."""
    if not state.active[unit]:
        return
    attacks = unit < rules.attackers
    colour = _ATTACKER if attacks else _DEFENDER
    place, facing = state.position[unit], HEADING[state.heading[unit]]
    if not attacks:
        reach, cosine = rules.sight_range[unit], rules.sight_cos[unit]
        canvas.wedge(place, facing, float(reach), float(cosine), colour, 0.25)
    reach, cosine = rules.tag_range[unit], rules.tag_cos[unit]
    canvas.wedge(place, facing, float(reach), float(cosine), colour, 0.3)


def _unit(canvas: _Canvas, rules: Rules, state: State, unit: int) -> None:
    """A dart; a flier's is lighter and throws a shadow. A ring shows that it has just tagged."""
    attacks = unit < rules.attackers
    size = 0.026 * rules.scenario.arena
    place, facing = state.position[unit], HEADING[state.heading[unit]]
    colour = (_FLIER if rules.flier[unit] else _ATTACKER) if attacks else _DEFENDER
    height = int(state.altitude[unit])
    if height:
        canvas.arrow(place + np.array([1, -1]) * height * 0.5 * size, facing, size, _SHADOW)
    canvas.arrow(place, facing, 1.45 * size, _WHITE if state.alive[unit] else _OUT)
    canvas.arrow(place, facing, size, colour if state.active[unit] else _OUT)
    just_tagged = rules.tag_cooldown[unit] > 0 and state.tag_wait[unit] == rules.tag_cooldown[unit]
    if just_tagged:
        canvas.disk(place, 2.0 * size, colour, 0.8, hole=1.7 * size)


def _bars(rules: Rules, state: State) -> np.ndarray:
    s = rules.scenario
    bars = np.full((BAR, SIZE, 3), _BACK, np.uint8)
    half, edge = SIZE // 2, 4
    held = int((half - 2 * edge) * min(1.0, float(state.captured) / s.capture_ticks))
    left = int((half - 2 * edge) * max(0.0, 1 - float(state.tick) / s.step_limit))
    bars[edge:-edge, edge : edge + held] = _ZONE
    bars[edge:-edge, half + edge : half + edge + left] = _GRID
    return bars
