"""What environments may return: finite numbers, within bounds, categories that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.errors import BadValueError
from stoker.pools.blame import circumstances
from stoker.pools.rows import Rows
from stoker.types import EnvSpec, LeafSpec, StepBatch

_LARGEST = np.finfo(np.float32).max
_TOLERANCE = 1e-4
"""How far past a bound is no fault, relative to it: observations are rounded to float32."""


class ValueCheck:
    """Looks at a batch at a time: two comparisons a leaf, which NaN and infinity fail as well.

    `rows` are those that batches are of: they tell the seeds and actions that led to a fault.
    """

    def __init__(self, rows: Rows, check_bounds: bool = True) -> None:
        self._rows = rows
        self._leaves = {
            leaf: (kind, *limits(kind, check_bounds))
            for leaf, kind in rows.spec.observation.items()
            if kind.kind != "image"
        }

    def accept(self, batch: StepBatch, acted: bool = True) -> StepBatch:
        """`batch`, or the error that names its first fault.

        `acted` is False if no action led here, or if the rows do not have it.
        """
        for sentence in self.faults(batch, acted).values():
            raise BadValueError(sentence)
        return batch

    def faults(self, batch: StepBatch, acted: bool = True) -> dict[int, str]:
        """The rows with a fault, and words that name it and what led there."""
        over = batch.terminated | batch.truncated
        ended = np.flatnonzero(over) if 1 in over.tobytes() else None
        sound = _all(np.isfinite(batch.reward))
        for leaf, (_, low, high) in self._leaves.items():
            values = batch.obs[leaf]
            sound &= _all(values >= low) and _all(values <= high)
            if ended is not None:
                last = batch.final_obs[leaf][ended]
                sound &= _all(last >= low) and _all(last <= high)
        if sound:
            return {}
        return {
            row: sentence + self._led_there(int(batch.env_ids[row]), bool(over[row]), seen, acted)
            for row, sentence, seen in self._offences(batch, np.flatnonzero(over))
        }

    def _led_there(self, env_id: int, ended: bool, seen: bool, acted: bool) -> str:
        """The seed and the action that led to a fault, as far as they are known.

        What is `seen` in a row whose episode has `ended` is the next one's first observation.
        """
        seed = self._rows.seed_of(env_id, before=ended and not seen)
        action = self._rows.action[env_id] if acted and not (ended and seen) else None
        if seed is not None:
            return f"\n{circumstances(seed, action)}"
        return "" if action is None else f"\nIts action was {action.tolist()}."

    def _offences(self, batch: StepBatch, over: np.ndarray) -> Iterator[tuple[int, str, bool]]:
        """Rows, sentences, and whether it is the observation that is at fault."""
        ids, reward = batch.env_ids, batch.reward
        for row, sentence in _describe("reward", "finite", reward, np.isfinite(reward), ids):
            yield row, sentence, False
        for leaf, (kind, low, high) in self._leaves.items():
            values, last = batch.obs[leaf], batch.final_obs[leaf][over]
            good = (values >= low) & (values <= high)
            name, wanted = f"observation {leaf}", rule(kind, values)
            for row, sentence in _describe(name, wanted, values, good, ids, kind.start):
                yield row, sentence, True
            good = (last >= low) & (last <= high)
            name, wanted = f"final observation {leaf}", rule(kind, last)
            for row, sentence in _describe(name, wanted, last, good, ids[over], kind.start):
                yield int(over[row]), sentence, False


def _all(good: np.ndarray) -> bool:
    """A fifth of the cost of `good.all()` for the few hundred values of a batch."""
    return 0 not in good.tobytes()


def limits(kind: LeafSpec, check_bounds: bool) -> tuple[Any, Any]:
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


def rule(kind: LeafSpec, values: np.ndarray) -> str:
    """What the values of a leaf should be; of several rules, the first that some do not keep."""
    if kind.kind == "discrete":
        return f"between {kind.start} and {kind.start + kind.n - 1}"
    if not np.isfinite(values).all():
        return "finite"
    low, high = (
        np.array2string(np.squeeze(np.asarray(side or infinite)), threshold=12)
        for side, infinite in ((kind.low, -np.inf), (kind.high, np.inf))
    )
    return f"within the bounds of its space, {low} to {high}"


def _describe(
    name: str,
    wanted: str,
    values: np.ndarray,
    good: np.ndarray,
    env_ids: np.ndarray,
    start: int = 0,
) -> Iterator[tuple[int, str]]:
    for row in np.flatnonzero(~good.all(axis=tuple(range(1, good.ndim)))).tolist():
        yield (
            row,
            f"Environment {env_ids[row]} returned {_a(name)} that is not {wanted}: "
            f"{np.array2string(np.asarray(values[row] + start), threshold=12)}. Mend it, or clip "
            "it in a wrapper.",
        )


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def read_mask(given: Any, env_id: int, spec: EnvSpec) -> np.ndarray:
    """The action mask [M] that an environment gave, with a choice left of each action."""
    mask = np.asarray(given, bool).reshape(-1)
    if mask.size != spec.mask_width:
        raise BadValueError(
            f"Environment {env_id} gave an action mask of {mask.size} entries; it needs "
            f"{spec.mask_width}, one for each choice of each action."
        )
    place = 0
    for choices in spec.action.nvec:
        if not mask[place : place + choices].any():
            raise BadValueError(
                f"Environment {env_id} gave an action mask that allows no action: "
                f"{mask.astype(int).tolist()}. Leave at least one choice of each action, or "
                "end the episode."
            )
        place += choices
    return mask
