"""Pages that are made of what stands elsewhere, so that nothing is written twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import command_line
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|link|iframe)\b[^>]*(?:src|href)="?(https?:[^"\s>]+)"""
)
_ELSEWHERE = {"CHANGELOG.md": "changelog.md", "examples": "examples.md"}
"""Links of the README to what the site has under another name."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The front page is the README; the others have no file of their own either."""
    made = {
        "index.md": _front(),
        "changelog.md": (_ROOT / "CHANGELOG.md").read_text(),
        "examples.md": _examples(),
        "reference/command-line.md": command_line.page(),
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """A page must open without a network: what it is made of is all here."""
    if found := _FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_path} loads {found[1]}; the site must do without.")
    return output


def _front() -> str:
    """The README, with links as they are from within docs."""
    text = re.sub(r"\]\(docs/", "](", (_ROOT / "README.md").read_text())
    for link, name in _ELSEWHERE.items():
        text = text.replace(f"]({link})", f"]({name})")
    return text


def _examples() -> str:
    """Each file of examples under what its docstring says."""
    parts = ["# Examples\n"]
    for path in sorted((_ROOT / "examples").glob("*.py")):
        code = path.read_text()
        says = ast.get_docstring(ast.parse(code)) or ""
        parts.append(f"## `{path.name}`\n\n{says.splitlines()[0]}\n\n```python\n{code}```\n")
    return "\n".join(parts)
