"""JSON that any reader can read: no NaN, no Infinity, no name twice. Files never half written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from stoker.runs.temporary import sync_folder, temporary_sibling


def dumps(obj: Any, *, sort_keys: bool = False) -> str:
    """`obj` as one line of strict JSON.

    NaN and infinities become null, so a caller that must get an infinity back (the bound of an
    unbounded space) writes it as a string. NumPy and torch scalars become numbers. TypeError for a
    name that is not a string, and for anything JSON has no word for.
    """
    return json.dumps(_plain(obj), allow_nan=False, sort_keys=sort_keys, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """The value of strict JSON; ValueError for anything else, NaN and repeated names included."""
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Put `content` at `path`, so that a crash at any instant leaves the old file or the new."""
    data = content.encode() if isinstance(content, str) else content
    temporary = temporary_sibling(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"JSON names are strings; {key!r} is a {type(key).__name__}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # NumPy and torch scalars, told by their shape so that reading a run needs neither.
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        item = value.item()
        if item is not value:
            return _plain(item)
    raise TypeError(f"JSON cannot hold {value!r:.100} of type {type(value).__name__}")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is too large for a number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r:.100} appears twice in one object")
    return named
