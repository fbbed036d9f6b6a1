"""What `predict` is given, as a policy takes it; or in words why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.errors import ConfigError
from stoker.types import EnvSpec, LeafSpec


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
    if (
        isinstance(observation, tuple)
        and len(observation) == 2
        and isinstance(observation[1], dict)
    ):
        raise ConfigError(
            "The observation is a pair of which the second is a dict, as reset() gives it: "
            "(observation, info). Give predict the first."
        )
    obs, single = {}, False
    for leaf, kind in spec.observation.items():
        if isinstance(observation, Mapping) and leaf not in observation:
            raise ConfigError(f"The observation has no leaf {leaf!r}; the model was trained on it.")
        given = observation[leaf] if isinstance(observation, Mapping) else observation
        value = _as_array(given, leaf, kind)
        if value.shape == kind.shape:
            value, single = value[None], True
        elif value.shape[1:] != kind.shape or not len(value):
            raise ConfigError(
                f"The observation leaf {leaf!r} has shape {value.shape}; the model was trained on "
                f"{kind.shape}, or a batch of these."
            )
        obs[leaf] = np.ascontiguousarray((value - kind.start).astype(kind.dtype))
    if len({len(value) for value in obs.values()}) > 1:
        counts = ", ".join(f"{leaf!r} {len(value)}" for leaf, value in obs.items())
        raise ConfigError(f"The observation's leaves have several numbers of rows: {counts}.")
    return obs, single


def _as_array(given: Any, leaf: str, kind: LeafSpec) -> np.ndarray:
    """Numbers that the leaf may hold, of whatever shape."""
    try:
        value = np.asarray(given)
    except ValueError as error:
        raise ConfigError(f"The observation leaf {leaf!r} cannot be read: {error}.") from error
    whole = kind.kind != "vector"
    if value.dtype.kind not in ("biu" if whole else "biuf"):
        raise ConfigError(
            f"The observation leaf {leaf!r} is of {value.dtype}; the model was trained on "
            f"{'whole numbers' if whole else 'numbers'}, {kind.dtype}."
        )
    first = kind.start if kind.kind == "discrete" else 0
    last = first + kind.n - 1 if kind.kind == "discrete" else 255
    if whole and value.size and not (value.min() >= first and value.max() <= last):
        raise ConfigError(
            f"The observation leaf {leaf!r} goes from {value.min()} to {value.max()}; the model "
            f"was trained on {first} to {last}."
        )
    if not np.isfinite(value).all():
        raise ConfigError(f"The observation leaf {leaf!r} holds NaN or infinity.")
    return value
