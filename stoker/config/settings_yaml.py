"""Settings as YAML: one flat mapping, loaded safely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

_SIZE_LIMIT = 1_000_000
_DEPTH_LIMIT = 32


class _WithoutAliases(yaml.SafeDumper):
    """Writes a value that appears twice in full, so that a reader can diff and edit it."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def dump_settings(settings: Mapping[str, Any]) -> str:
    """`settings` as YAML, in their own order; TypeError for a value YAML has no plain word for."""
    try:
        text: str = yaml.dump(dict(settings), Dumper=_WithoutAliases, sort_keys=False)
    except yaml.YAMLError as error:
        raise TypeError(f"settings must be plain values: {error}") from error
    return text


def parse_settings(text: str | bytes) -> dict[str, Any]:
    """One flat mapping of settings by name; ValueError for anything else."""
    content = parse_yaml(text)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError("it must hold settings by name, such as 'n_envs: 8'")
    return content


def parse_yaml(text: str | bytes) -> Any:
    """Plain values, loaded safely; ValueError for anything else."""
    try:
        _refuse_bombs(text)
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not YAML that can be loaded safely: {error}") from error


class _Loader(yaml.SafeLoader):
    """As safe; but of two values for one name it takes neither: YAML's would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(name, deep) for name, _ in node.value]
        if twice := [name for place, name in enumerate(names) if name in names[:place]]:
            raise ValueError(f"it gives {twice[0]!r} twice; keep one")
        return super().construct_mapping(node, deep)


def _refuse_bombs(text: str | bytes) -> None:
    """ValueError for what takes a few bytes to write and minutes or gigabytes to read."""
    if len(text) > _SIZE_LIMIT:
        raise ValueError(f"it has {len(text)} bytes, and settings at most {_SIZE_LIMIT}")
    depth = 0
    # Events come one by one, so a hostile file is left at its first offence: PyYAML takes time
    # that grows with the square of the depth (three minutes for 100,000 brackets, measured).
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it uses YAML aliases (&, *), which can blow up; write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_LIMIT:
            raise ValueError(f"it is nested more than {_DEPTH_LIMIT} deep")
