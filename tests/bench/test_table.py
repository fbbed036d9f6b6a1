"""The tables: what is committed is what the results give, and what they say of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import table
from bench.record import RESULTS

PAGES = table.pages(table.read(RESULTS))


@pytest.mark.parametrize("name", PAGES)
def test_what_is_committed_is_what_the_results_give(name: str) -> None:
    assert (table.DOCS / name).read_text() == PAGES[name], "run `python -m bench table`"


def test_there_is_no_page_that_nothing_makes() -> None:
    assert {path.name for path in table.DOCS.glob("*.md")} == set(PAGES)


def row(**given: Any) -> dict[str, Any]:
    return {
        "bench": "peers",
        "case": "tensor, CartPole: 2048 x 32",
        "ours": 60e6,
        "unit": "steps/s",
        "peer": None,
        "peer_name": None,
        "ratio": None,
        "ceiling": None,
        "details": None,
        "commit": "0123456789",
        "date": "2026-11-18",
        **given,
    }


MEASURED = {
    "steps_per_s": [59_000_000, 61_000_000],
    "gpu": {"busy_%": 99.2, "sm_active_%": 47.1, "power_w": 239.4},
    "joules_per_million_steps": 3.98,
    "host_memory_mb": 2100.4,
    "remarks": [],
    "learning": {
        "rewards": [480.0, 490.0, 500.0],
        "reward": 490.0,
        "reward_interval_95": [465.16, 514.84],
        "goal": 475.0,
        "goal_s": 4.2,
        "goal_steps": 1_310_720,
        "start_up_s": 3.9,
    },
}
CANNOT = {"cannot": "it has no discrete actions"}
FAILED = {"failed": "it gave no answer within 60 s, and was ended"}


def peers_page(tmp_path: Path, *rows: dict[str, Any]) -> str:
    versions = {"torch": "2.11.0"}
    where = {"cores": 16, "gpu": "NVIDIA H200", "python": "3.12.3", "versions": versions}
    (tmp_path / "peers-gpu.json").write_text(json.dumps({**where, "rows": rows}))
    return table.pages(table.read(tmp_path))["peers.md"]


def test_a_row_shows_every_figure(tmp_path: Path) -> None:
    page = peers_page(tmp_path, row(details=MEASURED))
    assert (
        "| **Stoker** | 60 M (59 M to 61 M) |  | 99.2 % | 47.1 % | 239 W | 3.98 J | 2,100 MB "
        "| 3.9 s | 4.2 s to 475 (1.31 M steps) | 490 (465.16 to 514.84) |"
    ) in page
    assert "one NVIDIA H200, 16 cores" in page


def test_what_a_file_says_of_itself_is_told_wherever_its_figures_are(tmp_path: Path) -> None:
    peers_page(tmp_path, row(details=MEASURED))
    kept = tmp_path / "peers-gpu.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "note": "Of one case alone."}))
    pages = table.pages(table.read(tmp_path))
    assert "torch 2.11.0. Of one case alone." in pages["peers.md"]
    assert "torch 2.11.0. Of one case alone." in pages["measurements.md"]


def test_who_cannot_and_who_failed_say_so(tmp_path: Path) -> None:
    page = peers_page(
        tmp_path,
        row(peer_name="A 1.0", details=CANNOT),
        row(peer_name="B 2.0", details=FAILED),
    )
    assert "| A 1.0 | cannot: it has no discrete actions |" in page
    assert "| B 2.0 | failed: it gave no answer within 60 s, and was ended |" in page


def test_what_was_not_reached_or_not_known_is_said(tmp_path: Path) -> None:
    slow = {**MEASURED["learning"], "goal_s": None, "given_up_after_s": 8.1}
    details = {**MEASURED, "gpu": None, "joules_per_million_steps": None, "learning": slow}
    peer = row(peer=4e5, peer_name="C 3.0", ratio=150, details=details)
    page = peers_page(tmp_path, row(details=MEASURED), peer)
    assert "| 150 x | unknown | unknown | unknown | unknown |" in page
    assert "not reached in 8.1 s of training" in page


def test_what_is_not_known_of_anyone_has_no_column(tmp_path: Path) -> None:
    unasked = {**MEASURED, "gpu": None, "joules_per_million_steps": None, "learning": None}
    page = peers_page(tmp_path, row(details=unasked), row(peer_name="A 1.0", details=CANNOT))
    (head,) = (line for line in page.splitlines() if line.startswith("| trainer"))
    assert head == "| trainer | steps/s | ours is | host memory |"


def test_ours_is_first_and_then_the_quickest(tmp_path: Path) -> None:
    rows = [
        row(peer=1e5, peer_name="slow", details=MEASURED),
        row(peer=9e5, peer_name="quick", details=MEASURED),
        row(details=MEASURED),
    ]
    lines = [line for line in peers_page(tmp_path, *rows).splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| **Stoker**", "| quick", "| slow"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (68_012_677, "68 M"),
        (12_609, "12,609"),
        (0.874, "0.874"),
        (3.5e9, "3,500 M"),
        (99.2, "99.2"),
    ],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert table.number(value) == text


def test_a_target_that_is_missed_is_said(tmp_path: Path) -> None:
    versions = {"torch": "2.11.0"}
    where = {"cores": 16, "gpu": "NVIDIA H200", "python": "3.12.3", "versions": versions}
    rows = [row(case="small: 2048 x 32, 64-64, tf32", ours=44e6)]
    (tmp_path / "tensor-gpu.json").write_text(json.dumps({**where, "rows": rows}))
    page = table.pages(table.read(tmp_path))["targets.md"]
    assert "| 45 M steps/s | 44 M | **not reached** |" in page
    assert "| 110 M steps/s | unknown | not measured |" in page
