"""The state of n missions, and what a scenario fixes for all of them, on a device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker.envs.mission.geometry import HEADING, hall
from stoker.envs.mission.observe import RAY_OFFSETS
from stoker.envs.mission.orders import CLIMB, THROTTLE, TURN
from stoker.envs.mission.raster import pixel_axis
from stoker.envs.mission.rules import SLIDES
from stoker.envs.mission.scenario import Scenario
from stoker.envs.mission.state import Rules
from stoker.envs.mission.tensor.geometry import Boxes


class Missions(NamedTuple):
    """n missions between two ticks: `mission.state.State`, whose words hold here, field by field.

    As a dict by name, it is the environment's `TensorState`.
    """

    tick: Tensor  # int32 [n]
    present: Tensor  # bool [n, U]
    position: Tensor  # float32 [n, U, 2]
    heading: Tensor  # int32 [n, U]
    throttle: Tensor  # int32 [n, U]
    altitude: Tensor  # int32 [n, U]
    shield: Tensor  # int32 [n, U]
    stun: Tensor  # int32 [n, U]
    tag_wait: Tensor  # int32 [n, U]
    scan_wait: Tensor  # int32 [n, A]
    box_centre: Tensor  # float32 [n, O, 2]
    box_half: Tensor  # float32 [n, O, 2]
    box_height: Tensor  # int32 [n, O]
    zone: Tensor  # float32 [n, 2]
    zone_radius: Tensor  # float32 [n]
    captured: Tensor  # int32 [n]
    patrol: Tensor  # int32 [n, D]
    spotted_at: Tensor  # float32 [n, D, 2]
    spotted_age: Tensor  # int32 [n, D]
    sees_defender: Tensor  # bool [n, A, D]
    reaches_defender: Tensor  # bool [n, A, D]
    sees_attacker: Tensor  # bool [n, D, A]
    reaches_attacker: Tensor  # bool [n, D, A]

    @property
    def boxes(self) -> Boxes:
        return Boxes(self.box_centre, self.box_half, self.box_height)

    @property
    def alive(self) -> Tensor:
        """Present and not out: bool [n, U]."""
        return self.present & (self.shield > 0)

    @property
    def active(self) -> Tensor:
        """Alive and not stunned: bool [n, U]."""
        return self.alive & (self.stun == 0)


class TensorRules(NamedTuple):
    """A scenario as tensors: `mission.state.Rules`, and the tables of the game."""

    scenario: Scenario
    attackers: int
    defenders: int
    obstacles: int
    flier: Tensor  # bool [U]
    speed: Tensor  # float32 [U], and so on
    sight_range: Tensor
    sight_cos: Tensor
    tag_range: Tensor
    tag_cos: Tensor
    tag_cooldown: Tensor  # int32 [U]
    stun: Tensor  # int32 [U]
    weights: Tensor  # float32 [len(COMPONENTS)]
    headings: Tensor  # float32 [DIRECTIONS, 2]
    throttle_of: Tensor  # int32 [len(Action)]
    turn_of: Tensor  # int32 [len(Action)]
    climb_of: Tensor  # int32 [len(Action)]
    slides: Tensor  # float32 [3, 1, 1, 2]
    ray_offsets: Tensor  # int32 [RAYS]
    hall: Boxes  # one box of one mission
    pixel_axis: Tensor  # float32 [SIZE]

    @property
    def units(self) -> int:
        return self.attackers + self.defenders


def rules_on(device: torch.device, rules: Rules) -> TensorRules:
    """`rules` with their arrays, and the tables, as tensors of `device`."""

    def on(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    given: dict[str, Any] = {
        name: on(value) if isinstance(value, np.ndarray) else value
        for name, value in rules._asdict().items()
    }
    arena = rules.scenario.arena
    return TensorRules(
        **given,
        headings=on(HEADING),
        throttle_of=on(THROTTLE),
        turn_of=on(TURN),
        climb_of=on(CLIMB),
        slides=on(SLIDES)[:, None],
        ray_offsets=on(RAY_OFFSETS).int(),
        hall=Boxes(*(on(of)[None] for of in hall(arena))),
        pixel_axis=on(pixel_axis(arena)),
    )
