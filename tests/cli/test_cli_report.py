"""`stoker report`, as a user calls it: a page, a trace, figures; and what it says if it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from made_runs import make_run

from stoker.cli.report import report
from stoker.errors import ConfigError, RunError, StokerError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs `before` and `after`, and the folder above it to work in."""
    monkeypatch.chdir(tmp_path)
    for name in ("before", "after"):
        make_run(tmp_path / "runs", name)
    return tmp_path / "runs"


def test_the_page_of_a_run_lies_with_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["before"]) == 0
    text = (runs / "before" / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "plotly.js v" in text
    assert capsys.readouterr().out.startswith("runs/before/report.html, 4.")


def test_several_are_compared_where_runs_lie_or_where_one_wants(runs: Path, tmp_path: Path) -> None:
    report(["before", "runs/after"])
    assert "before and after" in (runs / "report.html").read_text()
    report(["before", "after", "--out", str(tmp_path / "here.html")])
    assert (tmp_path / "here.html").exists()
    assert not (runs / "before" / "report.html").exists()


def test_figures_and_traces_need_no_plotly_and_write_no_page(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    report(["before", "after", "--json", "--trace", "both.json"])
    found = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in found["runs"]] == ["before", "after"]
    assert found["runs"][0]["gpu_busy"] == pytest.approx(0.5)
    assert found["runs"][0]["best_agent_reward"] is None
    assert json.loads(Path("both.json").read_text())["traceEvents"]
    assert list(runs.rglob("*.html")) == []
    with pytest.raises(StokerError, match=r"pip install 'stoker\[web\]'"):
        report(["before"])


def test_it_says_what_is_wrong(runs: Path) -> None:
    with pytest.raises(ConfigError, match="0 runs are named; name 1 to 24"):
        report([])
    with pytest.raises(RunError, match=r"Did you mean runs/before\?"):
        report(["befor"])
    with pytest.raises(RunError, match=r"No such file or directory\. Choose another place"):
        report(["before", "--out", "nowhere/report.html"])
    with pytest.raises(RunError, match=r"runs is a folder\. Name a file in it with --out"):
        report(["before", "--out", "runs"])
    with pytest.raises(RunError, match=r"runs is a folder\. Name a file in it with --trace"):
        report(["before", "--trace", "runs"])
