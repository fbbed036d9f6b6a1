"""What an environment returned: a reward as a number, an end as a truth value, a beginning."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from stoker.pools.awaited import RAISED
from stoker.pools.blame import API, blame, refusal, sketch


class UnreadableError(Exception):
    """Something else was returned: what was found, and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"{found}: {expected}")
        self.found, self.expected = found, expected


def number(reward: Any) -> float:
    """A reward that is no float, as a number; text, None and the like are refused."""
    if isinstance(reward, numbers.Real):
        try:
            return float(reward)
        except OverflowError as error:
            found = f"a reward of {type(reward).__name__} that is larger than any float"
            raise UnreadableError(found, "A reward is one real number.") from error
    if hasattr(reward, "__array__"):
        value = np.asarray(reward)
        if value.size == 1 and value.dtype.kind in "biuf":
            return float(value.item())
    found = f"the reward {reward!r} ({type(reward).__name__})"
    raise UnreadableError(found, "A reward is one real number.")


def truth(end: Any) -> bool:
    """Whether an episode ends, which only what is True or False, or 1 or 0, can say."""
    if isinstance(end, (bool, np.bool_)):
        return bool(end)
    if np.ndim(end) == 0 and np.asarray(end).dtype.kind in "biu":
        return bool(end)
    found = f"{end!r} ({type(end).__name__}) for terminated or truncated"
    raise UnreadableError(found, "Each is True or False.")


def reset_env(
    env: gymnasium.Env[Any, Any],
    index: int,
    seed: int | None,
    options: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    """Reset environment `index` of a pool: its observation and info, or an EnvError."""
    try:
        given = {} if options is None else {"options": options}
        returned = env.reset(seed=seed, **given)
    except RAISED as error:
        raise blame(index, "reset", error, seed) from error
    alike = isinstance(returned, tuple) and len(returned) == 2
    if not alike or not isinstance(returned[1], Mapping):
        raise refusal(index, "reset", sketch(returned), API["reset"], seed)
    return returned
