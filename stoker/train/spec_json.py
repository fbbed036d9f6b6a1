"""An environment's spec as JSON, and back: unbounded actions are written as words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stoker.types import ActionSpec, EnvSpec, LeafSpec


def encode(spec: EnvSpec) -> dict[str, Any]:
    """`spec` in values that strict JSON can hold."""
    fields = dataclasses.asdict(spec)
    for bound in ("low", "high"):
        fields["action"][bound] = [repr(number) for number in fields["action"][bound]]
    return fields


def decode(saved: Mapping[str, Any]) -> EnvSpec:
    """What `encode` was given."""
    leaves = {name: LeafSpec(**_tupled(leaf)) for name, leaf in saved["observation"].items()}
    action = _tupled(saved["action"])
    for bound in ("low", "high"):
        action[bound] = tuple(float(number) for number in action[bound])
    return EnvSpec(**(_tupled(saved) | {"observation": leaves, "action": ActionSpec(**action)}))


def _tupled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where specs have tuples."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
