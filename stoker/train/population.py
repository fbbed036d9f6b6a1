"""Many agents at once: what they differ in, and how they compare."""

from __future__ import annotations

import torch

from stoker.config.schema import Config
from stoker.learn.fused import Scalars


def scalars(config: Config, device: torch.device) -> Scalars:
    """Each agent's settings."""
    ppo, agents = config.ppo, config.run.population
    given = (getattr(ppo, name) for name in Scalars._fields)
    return Scalars(*(torch.full((agents,), value, device=device) for value in given))
