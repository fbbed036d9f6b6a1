"""The pages of the documentation, and what stands in them to be typed or run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
_MARK = re.compile(r"<!-- (needs|file): (.*?) -->")
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


class Block(NamedTuple):
    """A fenced block, with what the comments in the line above it say."""

    page: str
    line: int
    language: str
    text: str
    needs: tuple[str, ...]
    """Why it cannot be run in a test; empty where it can."""
    file: str
    """The file that a reader saves it as."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each line of a shell block, without comments and redirections."""
        lines = self.text.replace("\\\n", " ").splitlines()
        split = [shlex.split(line, comments=True) for line in lines]
        return [words[: words.index(">")] if ">" in words else words for words in split if words]


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    begin: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begin is None:
            begin = number
            continue
        marks: dict[str, str] = dict(_MARK.findall(lines[begin - 1] if begin else ""))
        needs = tuple(name.strip() for name in marks.get("needs", "").split(",") if name.strip())
        text = "\n".join(lines[begin + 1 : number]) + "\n"
        language = lines[begin].strip().removeprefix("```")
        found.append(Block(page, begin + 1, language, text, needs, marks.get("file", "")))
        begin = None
    assert begin is None, f"{page}:{begin}: a block does not end"
    return found


def code_spans(page: str) -> Iterator[str]:
    """What stands between backticks in the text of a page."""
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / page).read_text())
    for span in _CODE.findall(text):
        yield " ".join(span.split())
