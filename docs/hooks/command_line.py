"""Every command's flags, asked of its own parser: for the reference, and for tests of the pages."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from typing import Any, NoReturn
from unittest import mock

import tyro

from stoker.cli.commands import COMMANDS
from stoker.cli.main import main

_BELOW = {"site": ("serve",), "sweep": ("", "show")}
"""Commands that are made of others; the empty one is the command itself."""
_LIKE_TRAIN = ("doctor", "tune", "sweep")
"""Those that take every flag of `stoker train` besides their own."""
_DEFAULT = re.compile(r"\s*\(default: (.*)\)$", re.DOTALL)


class _ReachedError(Exception):
    """A command wants its flags parsed, by these rules."""


def parser_of(*words: str) -> argparse.ArgumentParser:
    """What parses the flags of `stoker WORDS`, and prints their help."""

    def reach(kind: type[Any], *, args: list[str], **rules: Any) -> NoReturn:
        raise _ReachedError(kind, rules)

    with mock.patch("tyro.cli", reach), contextlib.redirect_stdout(io.StringIO()):
        try:
            main([*words, "--help"])
        except _ReachedError as reached:
            kind, rules = reached.args
    return tyro.extras.get_parser(kind, **rules)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """All of them by what is typed, with the defaults of a machine without a GPU."""
    found = {}
    for name in COMMANDS:
        for below in _BELOW.get(name, ("",)):
            words = [name, below] if below else [name]
            on_cpu = ["--device", "cpu"] * (words in [["train"], *([one] for one in _LIKE_TRAIN)])
            found[" ".join(["stoker", *words])] = parser_of(*words, *on_cpu)
    found["stoker train --algo dqn"] = parser_of("train", "--algo", "dqn", "--device", "cpu")
    return found


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every spelling that it takes."""
    return {spelling for action in parser._actions for spelling in action.option_strings}


def page() -> str:
    """The reference of the command line, as Markdown."""
    known = parsers()
    parts = [_HEAD]
    for title, parser in known.items():
        parts.append(f"## `{title}`\n")
        if title == "stoker train --algo dqn":
            parts.append("What DQN has in place of PPO's settings; all else is as above.\n")
            parts += _groups(parser, beside=known["stoker train"])
            continue
        parts += _description(parser)
        if title.split()[1] in _LIKE_TRAIN and title != "stoker sweep show":
            parts.append("It takes every flag of [`stoker train`](#stoker-train), and these:\n")
            parts += _groups(parser, beside=known["stoker train"])
        else:
            parts += _groups(parser)
    return "\n".join(parts)


_HEAD = """# The command line

Made from the commands' own parsers, with the defaults of a machine without a GPU; `stoker COMMAND
--help` prints the same with those of yours. Numbers may be written `50M`, `1e6` or `64k`.
"""


def _description(parser: argparse.ArgumentParser) -> Iterator[str]:
    words, _, examples = inspect.cleandoc(parser.description or "").partition("\n\nTry:\n")
    yield words + "\n"
    if examples:
        yield "```text\n" + inspect.cleandoc(examples) + "\n```\n"


def _groups(
    parser: argparse.ArgumentParser, beside: argparse.ArgumentParser | None = None
) -> Iterator[str]:
    """A table for each group of flags; without those that `beside` explains in the same words."""
    told = {(*one.option_strings, one.help) for one in beside._actions} if beside else set()
    for group in parser._action_groups:
        rows = [
            action
            for action in group._group_actions
            if "--help" not in action.option_strings
            and (*action.option_strings, action.help) not in told
        ]
        if rows:
            if (group.title or "").endswith(" options"):
                yield f"**{(group.title or '').removesuffix(' options').capitalize()}**\n"
            yield "| flag | default | what it is |\n|---|---|---|"
            yield from map(_row, rows)
            yield ""


def _row(action: argparse.Action) -> str:
    said = action.help or ""
    default = _DEFAULT.search(said)
    flags = sorted(action.option_strings, key=_by_use) or [str(action.metavar)]
    takes = (action.metavar or "") if action.option_strings else ""
    takes = str(takes).replace("{None}|", "").strip("{}").replace(",", ", ")
    cells = (
        "<br>".join(f"`{flag}`" for flag in flags) + (f"<br>{_plain(takes)}" if takes else ""),
        f"`{default[1]}`" if default and default[1] not in ("", "None") else "",
        _plain(_DEFAULT.sub("", said)),
    )
    return f"| {' | '.join(cells)} |"


def _by_use(flag: str) -> tuple[bool, bool, str]:
    """The name of the setting first, then its short forms, then what turns it off."""
    return flag.startswith("--no-"), flag.startswith("--num-"), flag


def _plain(text: str) -> str:
    """For a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
