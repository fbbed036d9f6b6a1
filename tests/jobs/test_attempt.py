from __future__ import annotations

from pathlib import Path

import pytest

from stoker.jobs.attempt import last_lines

_MISTYPED = """\
reading settings
╭─ Value error ───────────────────────────────────────────╮
│ Error parsing --timesteps: 'abc' is not a whole number  │
│ (written like 100000, 64k, 1.5M or 1e6)                 │
│ ─────────────────────────────────────────────────────── │
│ Argument helptext:                                      │
│     --timesteps INT|64k|1e6                             │
│ ─────────────────────────────────────────────────────── │
│ For full helptext, see stoker train --help              │
╰─────────────────────────────────────────────────────────╯
"""
_FINISHED = "a\n\n╭─ finished ─╮\n│ reward 500  │\n╰────────────╯\n"


@pytest.mark.parametrize(
    ("text", "count", "said"),
    [
        ("one\n\n  \ntwo\n", 5, ["one", "two"]),
        ("one\ntwo\nthree", 2, ["two", "three"]),
        (_MISTYPED, 1, ["Error parsing --timesteps: 'abc' is not a whole number (written like "]),
        (_MISTYPED, 2, ["reading settings", "Error parsing --timesteps: 'abc' is not a whole "]),
        (_FINISHED, 2, ["│ reward 500  │", "╰────────────╯"]),
        ("", 3, []),
    ],
)
def test_the_last_lines_say_something(
    tmp_path: Path, text: str, count: int, said: list[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(text)
    found = last_lines(log, count)
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))
    assert not any("helptext" in line for line in found)


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "log.txt", 3) == []
