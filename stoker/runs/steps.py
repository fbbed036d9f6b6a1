"""The names of checkpoints, by step, and which there are. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

_STEP = re.compile(r"(?:\.replaced-)?step-(\d{12,})")


def step_name(step: int) -> str:
    """The folder name of the checkpoint at environment step `step`; names sort as steps do."""
    if step < 0:
        raise ValueError(f"a step is 0 or more, not {step}")
    return f"step-{step:012d}"


def list_steps(parent: Path) -> list[tuple[int, Path]]:
    """The checkpoints in `parent` by step, ascending; whether they are valid is not looked at."""
    found: dict[int, Path] = {}
    try:
        entries = sorted(parent.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    # ".replaced-" sorts before "step-": it is listed only where its successor is not there.
    for path in entries:
        match = _STEP.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found[int(match[1])] = path
    return sorted(found.items())
