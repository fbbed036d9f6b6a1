"""`python -m bench.parity_plot [RESULTS] [PNG]`: what `python -m bench parity` kept, as curves.

One row of two panels an environment: rewards of training episodes over steps and over wall-clock
time, the mean of each side and its 95 % interval. Times that do not count are not drawn.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.record import RESULTS

_DRAWN = Path(__file__).parent.parent / "docs" / "parity.png"
_COLOURS = {"ours": "#c44e00", "peer": "#1f5fa8"}
_COLUMNS = 2  # environments beside each other


def plot(results: Path, drawn: Path) -> None:
    """Draw every row of `results`, in its order."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = json.loads(results.read_text())["rows"]
    wide = min(_COLUMNS, len(rows))
    deep = -(-len(rows) // wide)
    figure, axes = pyplot.subplots(
        deep,
        2 * wide,
        figsize=(4.0 * 2 * wide, 2.6 * deep),
        squeeze=False,
        layout="constrained",
    )
    for panel in axes.flat:
        panel.set_axis_off()
    for number, row in enumerate(rows):
        line, column = divmod(number, wide)
        _draw(axes[line][2 * column], row, "over_steps", "steps")
        if row["details"]["wall_clock_counts"]:
            _draw(axes[line][2 * column + 1], row, "over_seconds", "seconds")
        else:
            _say(axes[line][2 * column + 1], "times do not count:\nthe cores were shared")
    names = {"ours": "Stoker", "peer": rows[0]["peer_name"]}
    patches = [matplotlib.patches.Patch(color=_COLOURS[side], label=names[side]) for side in names]
    figure.legend(handles=patches, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(drawn, dpi=100)
    pyplot.close(figure)


def _draw(panel: Any, row: dict[str, Any], which: str, unit: str) -> None:
    curve = row["details"][which]
    at = curve["at"]
    for side, colour in _COLOURS.items():
        band = curve[side]
        panel.fill_between(at, band["low"], band["high"], color=colour, alpha=0.18, linewidth=0)
        panel.plot(at, band["mean"], color=colour, linewidth=1.4)
    panel.set_axis_on()
    panel.set_title(f"{row['case']}, {row['details']['seeds']} seeds", fontsize=9)
    panel.set_xlabel(unit, fontsize=8)
    panel.tick_params(labelsize=7)
    panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 5))
    panel.xaxis.get_offset_text().set_fontsize(7)
    panel.grid(alpha=0.25)


def _say(panel: Any, words: str) -> None:
    panel.text(0.5, 0.5, words, ha="center", va="center", fontsize=8, color="grey")


if __name__ == "__main__":
    _given = [Path(word) for word in sys.argv[1:]]
    plot(*(_given + [RESULTS / "parity-cpu.json", _DRAWN][len(_given) :]))
