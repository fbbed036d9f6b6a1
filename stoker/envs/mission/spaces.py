"""What the commander sees and does, as Gymnasium writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from stoker.envs.mission.observe import vector_size
from stoker.envs.mission.orders import Action
from stoker.envs.mission.raster import SHAPE
from stoker.envs.mission.state import Rules


def action_space(rules: Rules) -> spaces.MultiDiscrete:
    """An action for each attacker."""
    return spaces.MultiDiscrete([len(Action)] * rules.attackers)


def observation_space(rules: Rules, raster: bool) -> spaces.Space[Any]:
    """The vector, with the bird's-eye view beside it if `raster`."""
    box = spaces.Box(-1.0, 1.0, (vector_size(rules),), np.float32)
    if not raster:
        return box
    return spaces.Dict({"vector": box, "raster": spaces.Box(0, 255, SHAPE, np.uint8)})
