"""Flags to dataclasses, the same way for every command."""

from __future__ import annotations

import inspect
from typing import Any

import tyro

from stoker.cli.commands import COMMANDS


def parse(kind: type[Any], arguments: list[str], command: str, **options: Any) -> Any:
    """Flags to a dataclass, with flat names; the help shows examples."""
    examples = "\n".join(f"  {example}" for example in COMMANDS[command].examples)
    return tyro.cli(
        kind,
        args=arguments,
        description=f"{inspect.cleandoc(kind.__doc__ or '')}\n\nTry:\n{examples}",
        config=(tyro.conf.OmitArgPrefixes,),
        **{"prog": f"stoker {command}", **options},
    )
