"""Plots of what the comparison measured, as files that are the same for the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

_COLOUR, _OTHERS = "#d9480f", "#868e96"


def draw(results: Mapping[str, Mapping[str, Any]], docs: Path) -> None:
    """A plot of everyone's speed, a panel a case, for each file of the comparison."""
    matplotlib.rcParams["svg.hashsalt"] = "stoker"
    for name in ("peers-gpu", "peers-cpu"):
        if name in results:
            _speeds(results[name]["rows"], docs / f"{name}.svg")


def _speeds(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    cases = list(dict.fromkeys(row["case"] for row in rows if row["peer"] or row["ours"]))
    if not cases:
        return
    figure, panels = plt.subplots(len(cases), 1, figsize=(9, 2.6 * len(cases)), squeeze=False)
    for panel, case in zip(panels[:, 0], cases, strict=True):
        _panel(panel, case, [row for row in rows if row["case"] == case])
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _panel(panel: Any, case: str, rows: Sequence[Mapping[str, Any]]) -> None:
    bars = {row["peer_name"]: row["peer"] for row in rows if row["peer"]}
    ours = next((row["ours"] for row in rows if row["peer_name"] is None), None)
    bars |= {"Stoker": ours} if ours else {}
    order = sorted(bars, key=lambda name: bars[name])
    colours = [_COLOUR if name == "Stoker" else _OTHERS for name in order]
    panel.barh(order, [bars[name] for name in order], color=colours)
    panel.set_xscale("log")
    panel.set_title(case, fontsize=9)
    panel.set_xlabel("steps a second, training", fontsize=8)
    panel.tick_params(labelsize=8)
