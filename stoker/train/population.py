"""Many agents at once: what they differ in, and how they compare."""

from __future__ import annotations

import torch

from stoker.config.schema import Config
from stoker.config.vary import drawn_settings
from stoker.learn.fused import Scalars


def scalars(config: Config, device: torch.device) -> Scalars:
    """Each agent's settings."""
    common = {name: getattr(config.ppo, name) for name in Scalars._fields}
    each = [{**common, **own} for own in _drawn(config)]
    columns = ([settings[name] for settings in each] for name in Scalars._fields)
    return Scalars(*(torch.tensor(column, device=device) for column in columns))


def _drawn(config: Config) -> list[dict[str, float]]:
    run = config.run
    return drawn_settings(run.vary, run.seed, run.population)
