"""Flags to dataclasses and names to runs, the same way for every command."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import tyro

from stoker.cli.commands import COMMANDS


def parse(kind: type[Any], arguments: list[str], command: str, **options: Any) -> Any:
    """Flags to a dataclass, with flat names; the help shows examples.

    Help is what docstrings say: to look for comments as well takes a quarter of the time.
    """
    examples = "\n".join(f"  {example}" for example in COMMANDS[command].examples)
    return tyro.cli(
        kind,
        args=arguments,
        description=f"{inspect.cleandoc(kind.__doc__ or '')}\n\nTry:\n{examples}",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
        **{"prog": f"stoker {command}", **options},
    )


def find_run(name: str, runs_dir: str) -> Path:
    """A run by its name in `runs_dir`, or by its path, of which `./name` is one."""
    named = Path(runs_dir) / name
    if name.startswith(("./", f".{os.sep}")):
        return Path(name)
    return named if named.is_dir() or len(Path(name).parts) == 1 else Path(name)
