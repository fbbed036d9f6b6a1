from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.runs.folder import RunFolder
from stoker.runs.lineage import config_hash, write_lineage
from stoker.runs.strict_json import loads


def lineage_of(tmp_path: Path) -> dict[str, Any]:
    run = RunFolder.create(tmp_path / "runs", "child")
    spaces = {"observation": {"low": [float("-inf")]}, "action": 2}
    write_lineage(run, parent="mother", config={"seed": 1}, spaces=spaces)
    lineage: dict[str, Any] = loads((run.path / "lineage.json").read_bytes())
    return lineage


def test_lineage_says_where_a_run_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    monkeypatch.chdir(tmp_path)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    lineage = lineage_of(tmp_path)
    assert lineage["parent"] == "mother"
    assert lineage["git_commit"] == head.stdout.strip()
    assert lineage["config_hash"] == config_hash({"seed": 1})
    assert lineage["spaces"] == {"observation": {"low": [None]}, "action": 2}
    assert lineage["versions"].keys() == {"stoker", "torch", "python"}
    assert abs(datetime.now(UTC) - datetime.fromisoformat(lineage["created"])).total_seconds() < 60


def test_no_repository_and_no_git_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert lineage_of(tmp_path / "a")["git_commit"] is None
    monkeypatch.setenv("PATH", "")
    assert lineage_of(tmp_path / "b")["git_commit"] is None


def test_equal_settings_have_one_hash() -> None:
    assert config_hash({"a": 1, "b": [2, 3]}) == config_hash({"b": (2, 3), "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
