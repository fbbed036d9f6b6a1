"""How settings are written: numbers, sizes and mappings as the words of a flag, and other names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tyro
import yaml
from tyro.constructors import PrimitiveConstructorSpec

from stoker.config.numbers import format_count, parse_count, parse_sizes


def _read_mapping(text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not YAML that can be loaded safely: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a mapping (written like '{{gravity: 9.8}}')")
    return value


def _read_words(words: Sequence[str]) -> dict[str, Any]:
    """`lr=1e-4..1e-2 ent_coef=0,0.01`, in one word or in several; see `config.vary`."""
    joined = re.sub(r"\s*(=|,|\.\.)\s*", r"\1", " ".join(words))
    pairs = [word.partition("=") for word in joined.split()]
    names = [name for name, _, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is there twice; keep one")
    return {name: written for name, _, written in pairs}


def _write_words(settings: Mapping[str, Any]) -> list[str]:
    """What `_read_words` reads."""
    return [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in settings.items()
    ]


COUNT = PrimitiveConstructorSpec[int](
    nargs=1,
    metavar="INT|64k|1e6",
    instance_from_str=lambda args: parse_count(args[0]),
    is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
    str_from_instance=lambda value: [format_count(value)],
)
BATCH = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="INT|auto",
    instance_from_str=lambda args: args[0] if args[0] == "auto" else parse_count(args[0]),
    is_instance=lambda value: value == "auto" or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)
SIZES = PrimitiveConstructorSpec[tuple[int, ...]](
    nargs=1,
    metavar="INT,INT,...",
    instance_from_str=lambda args: parse_sizes(args[0]),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda value: [",".join(map(str, value))],
)
MAPPING = PrimitiveConstructorSpec[dict[str, Any]](
    nargs=1,
    metavar="YAML",
    instance_from_str=lambda args: _read_mapping(args[0]),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [
        yaml.safe_dump(value, default_flow_style=True, width=math.inf).strip()
    ],
)

VARY = PrimitiveConstructorSpec[dict[str, Any]](
    nargs="*",
    metavar="NAME=LOW..HIGH|NAME=A,B,...",
    instance_from_str=_read_words,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=_write_words,
)


def also(*names: str) -> Any:
    """Other names a setting answers to, in flags and in files."""
    return tyro.conf.arg(aliases=tuple("--" + name.replace("_", "-") for name in names))
