"""What pages name in their text is there: flags, commands, benchmarks, results and presets."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from pages import PAGES, ROOT, code_spans

from bench.__main__ import BENCHES
from stoker.cli.commands import COMMANDS
from stoker.config.presets import PRESETS

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z_-]*")
_RESULT = re.compile(r"(?:bench/results/)?([a-z]+-[cg]pu\.json)")
_BENCH = ["python", "-m", "bench"]
_COMMANDS = {*COMMANDS, "COMMAND", "--version"}
_OF_OTHERS = {
    "--address",  # ray start
    "--logdir",  # tensorboard
    "--no-deps",  # pip install
    "--case",  # python -m bench
    "--peer",
    "--save",
    "--help",
    "--subproc",  # becomes --pool process before flags are parsed
    "--version",
}


@pytest.fixture(scope="module")
def command_line() -> ModuleType:
    """The hook that makes the reference of the command line."""
    path = ROOT / "docs" / "hooks" / "command_line.py"
    spec = importlib.util.spec_from_file_location("command_line", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_flag_that_is_named_is_one_of_a_command(command_line: ModuleType) -> None:
    known = set(_OF_OTHERS)
    for parser in command_line.parsers().values():
        known |= command_line.flags_of(parser)
    wrong = [
        f"{page}: {flag}"
        for page in PAGES
        for span in code_spans(page)
        for flag in _FLAG.findall(span)
        if flag.replace("_", "-") not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_the_reference_has_every_command_and_every_flag(command_line: ModuleType) -> None:
    text = command_line.page()
    for title, parser in command_line.parsers().items():
        assert f"## `{title}`\n" in text
        for flag in command_line.flags_of(parser) - {"-h", "--help"}:
            assert f"`{flag}`" in text, f"{title} {flag}"


def test_every_command_that_is_named_is_there() -> None:
    wrong = []
    for page in PAGES:
        for span in code_spans(page):
            first = span.split()[:4]
            known = {"NAME", "table", *BENCHES} if first[:3] == _BENCH else _COMMANDS
            name = first[3:] if first[:3] == _BENCH else first[1:2]
            if (first[:3] == _BENCH or first[0] == "stoker") and name and name[0] not in known:
                wrong.append(f"{page}: {span}")
    assert not wrong, "\n".join(wrong)


def test_every_result_that_is_named_is_there() -> None:
    spans = [(page, span) for page in PAGES for span in code_spans(page)]
    named = {(page, file) for page, span in spans for file in _RESULT.findall(span)}
    assert named
    there = {path.name for path in (ROOT / "bench" / "results").glob("*.json")}
    assert not [f"{page}: {file}" for page, file in sorted(named) if file not in there]


def test_the_table_of_presets_is_as_the_presets_are() -> None:
    text = Path(ROOT, "docs", "presets.md").read_text()
    for name, preset in PRESETS.items():
        sizes = (preset.n_envs, preset.n_steps, f"{preset.n_envs * preset.n_steps:,}")
        rest = (preset.batch_size, preset.n_epochs, ",".join(map(str, preset.network_arch)))
        row = " | ".join(map(str, (name, *sizes, *rest, preset.cores, preset.what_for)))
        assert f"| {row} |" in text
