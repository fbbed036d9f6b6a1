"""What environments may return: finite numbers, within bounds, categories that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.errors import BadValueError
from stoker.types import EnvSpec, LeafSpec, StepBatch

_LARGEST = np.finfo(np.float32).max
_TOLERANCE = 1e-4
"""How far past a bound is no fault, relative to it: observations are rounded to float32."""

Fault = tuple[int, str]
"""A row of a batch, and what is wrong with it."""


class ValueCheck:
    """Looks at a batch at a time: two comparisons a leaf, which NaN and infinity fail as well."""

    def __init__(self, spec: EnvSpec, check_bounds: bool = True) -> None:
        self._leaves = {
            leaf: (kind, *_limits(kind, check_bounds))
            for leaf, kind in spec.observation.items()
            if kind.kind != "image"
        }

    def accept(self, batch: StepBatch) -> StepBatch:
        """`batch`, or the error that names its first fault."""
        for _, sentence in self.faults(batch):
            raise BadValueError(sentence)
        return batch

    def faults(self, batch: StepBatch) -> Iterator[Fault]:
        """Every row with a fault, and the sentence that names it."""
        ids = batch.env_ids
        reward = batch.reward
        yield from _offences("reward", "finite", reward, np.isfinite(reward), ids)
        over = np.flatnonzero(batch.terminated | batch.truncated)
        for leaf, (kind, low, high) in self._leaves.items():
            values = batch.obs[leaf]
            good = (values >= low) & (values <= high)
            if not good.all():
                yield from _offences(leaf, _rule(kind, values, good), values, good, ids, kind)
            if over.size:
                last = batch.final_obs[leaf][over]
                good = (last >= low) & (last <= high)
                rule = _rule(kind, last, good)
                name = f"final observation {leaf}"
                for row, sentence in _offences(name, rule, last, good, ids[over], kind):
                    yield int(over[row]), sentence


def _limits(kind: LeafSpec, check_bounds: bool) -> tuple[Any, Any]:
    """The least and the largest that a leaf may hold, as scalars or arrays of its shape."""
    if kind.kind == "discrete":
        return 0, kind.n - 1
    low = _limit(kind.low, kind.shape, -1.0) if check_bounds else -_LARGEST
    high = _limit(kind.high, kind.shape, 1.0) if check_bounds else _LARGEST
    return low, high


def _limit(bounds: tuple[float, ...], shape: tuple[int, ...], side: float) -> Any:
    if not bounds:
        return np.float32(side * _LARGEST)
    bound = np.asarray(bounds, np.float64)
    slack = side * _TOLERANCE * np.maximum(1.0, np.abs(np.nan_to_num(bound)))
    limit = np.clip(bound + slack, -_LARGEST, _LARGEST).astype(np.float32)
    return limit[0] if limit.size == 1 else limit.reshape(shape)


def _rule(kind: LeafSpec, values: np.ndarray, good: np.ndarray) -> str:
    if kind.kind == "discrete":
        return f"between {kind.start} and {kind.start + kind.n - 1}"
    if good.all() or not np.isfinite(values).all():
        return "finite"
    low, high = (
        np.array2string(np.squeeze(np.asarray(side or infinite)), threshold=12)
        for side, infinite in ((kind.low, -np.inf), (kind.high, np.inf))
    )
    return f"within the bounds of its space, {low} to {high}"


def _offences(
    name: str,
    rule: str,
    values: np.ndarray,
    good: np.ndarray,
    env_ids: np.ndarray,
    kind: LeafSpec | None = None,
) -> Iterator[Fault]:
    if good.all():
        return
    shown = values + kind.start if kind is not None and kind.start else values
    for row in np.flatnonzero(~good.reshape(len(good), -1).all(axis=1)).tolist():
        yield (
            row,
            f"Environment {env_ids[row]} returned a {name} that is not {rule}: "
            f"{np.array2string(shown[row], threshold=12)}. Mend it, or clip it in a wrapper.",
        )
