"""Settings by name: each with its other names, and what a misspelt one may have meant."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from typing import Any

from stoker.config.algorithms import ALGORITHMS
from stoker.config.schema import groups_of


class Field(typing.NamedTuple):
    """Where a setting is found in `Config`, and the type of its value."""

    group: str
    name: str
    type: Any
    algos: tuple[str, ...]
    """The algorithms that have it."""


def _known_fields() -> dict[str, Field]:
    """Every setting of every algorithm by its name and by each of its aliases."""
    known: dict[str, Field] = {}
    kinds = [(algo, *pair) for algo in ALGORITHMS for pair in groups_of(algo).items()]
    for algo, group, kind in kinds:
        plain = typing.get_type_hints(kind)  # once: it reads every annotation of the class
        for name, annotated in typing.get_type_hints(kind, include_extras=True).items():
            metadata = typing.get_args(annotated)[1:] if hasattr(annotated, "__metadata__") else ()
            aliases = [alias for extra in metadata for alias in getattr(extra, "aliases", ()) or ()]
            for key in (name, *(alias.lstrip("-").replace("-", "_") for alias in aliases)):
                others = known[key].algos if key in known else ()
                known[key] = Field(group, name, plain[name], (*others, algo))
    return known


KNOWN = _known_fields()

_TARGET_STEP = "A rollout is n_envs x n_steps here: set n_steps to as many steps over n_envs."
ELSEWHERE = {
    "target_step": _TARGET_STEP,
    "base_target_step": _TARGET_STEP,
    "if_per_or_gae": "PPO always estimates advantages by GAE (gae_lambda); with algo dqn, per is "
    "prioritised replay. Leave it out.",
}
"""Words of other libraries for which there is no one setting, and what to do instead."""


def find_field(key: str) -> Field | None:
    """The setting that `key` names, written with `-` or `_`; None if there is none."""
    return KNOWN.get(key.replace("-", "_"))


def suggest(word: object, known: Iterable[str]) -> str:
    """What `word` may have been meant for, or all that is known."""
    if str(word) in ELSEWHERE:
        return f" {ELSEWHERE[str(word)]}"
    return near(word, known) or f" Known: {', '.join(known)}."


def near(word: object, known: Iterable[str]) -> str:
    """What `word` may have been meant for; empty if nothing is like it."""
    close = difflib.get_close_matches(str(word).replace("-", "_"), list(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else ""
