"""An environment's spec as JSON, and back: bounds are written as words, as some are infinite."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stoker.types import ActionSpec, EnvSpec, LeafSpec


def encode(spec: EnvSpec) -> dict[str, Any]:
    """`spec` in values that strict JSON can hold."""
    fields = dataclasses.asdict(spec)
    for space in (fields["action"], *fields["observation"].values()):
        for bound in ("low", "high"):
            space[bound] = [repr(number) for number in space[bound]]
    return fields


def decode(saved: Mapping[str, Any]) -> EnvSpec:
    """What `encode` was given."""
    leaves = {name: LeafSpec(**_bounded(leaf)) for name, leaf in saved["observation"].items()}
    action = ActionSpec(**_bounded(saved["action"]))
    return EnvSpec(**(_tupled(saved) | {"observation": leaves, "action": action}))


def _bounded(space: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {name: tuple(map(float, space.get(name, ()))) for name in ("low", "high")}
    return _tupled(space) | bounds


def _tupled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where specs have tuples."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
