"""What `predict` is given, as a policy takes it; or in words why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.errors import ConfigError
from stoker.types import EnvSpec


def masks(given: Any, count: int, spec: EnvSpec) -> np.ndarray:
    """Action masks [count, M], each with a choice left of each action."""
    try:
        rows = np.asarray(given, bool).reshape(count, spec.mask_width)
    except ValueError as error:
        raise ConfigError(
            f"The action mask cannot be read: {error}. It needs {spec.mask_width} entries for each "
            f"of {count} observations, one for each choice of each action."
        ) from error
    columns = np.split(rows, np.cumsum(spec.action.nvec)[:-1], axis=1)
    if not all(column.any(1).all() for column in columns):
        raise ConfigError("The action mask allows no action; leave one choice of each action.")
    return rows


def batched(observation: Any, spec: EnvSpec) -> tuple[dict[str, np.ndarray], bool]:
    """Host observations [n, ...] by leaf, and whether there was just one."""
    obs, single = {}, False
    for leaf, kind in spec.observation.items():
        if isinstance(observation, Mapping) and leaf not in observation:
            raise ConfigError(f"The observation has no leaf {leaf!r}; the model was trained on it.")
        value = np.asarray(observation[leaf] if isinstance(observation, Mapping) else observation)
        if value.shape == kind.shape:
            value, single = value[None], True
        elif value.shape[1:] != kind.shape:
            raise ConfigError(
                f"The observation leaf {leaf!r} has shape {value.shape}; the model was trained on "
                f"{kind.shape}, or a batch of these."
            )
        obs[leaf] = np.ascontiguousarray((value - kind.start).astype(kind.dtype))
    return obs, single
