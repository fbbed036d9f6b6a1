"""sweep.html: what a sweep found, in one file that needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from stoker.dashboard.charts import Chart, axis, colour, plain_layout, short
from stoker.dashboard.page import chart_place, document

_SHADES = ("#c9d6e4", "#a3bddb", "#77a0cd", "#4b82bd", "#2f6db3", "#c65d43")
"""Of trials from the worst to the best; the last is for the best alone."""
_TOLD = (
    "A trial's reward is the mean over its seeds of the mean return of the last hundred training "
    "episodes, when its time was up. A trial that was pruned was given up before that, and has no "
    "line here. The best of many is a lucky one, too: train with its settings on other seeds "
    "before you believe it. How much a setting decides is PED-ANOVA's estimate, and says nothing "
    "of settings that were not searched."
)
_BEST_SHOWN = 10

Row = Mapping[str, Any]


def sweep_page(found: Mapping[str, Any], plotly_js: str) -> str:
    """The whole page, of a sweep's summary."""
    rows = [row for row in found["rows"] if row["state"] == "complete" and row["value"] is not None]
    shown = (
        ("history", _history(rows)),
        ("importance", _importance(found["importances"])),
        ("parallel", _parallel(rows)),
    )
    drawn = {place: chart for place, chart in shown if chart is not None}
    body = "\n".join(_body(found, rows, drawn))
    return document(f"{found['name']}: a sweep", body, drawn, plotly_js)


def _body(found: Mapping[str, Any], rows: Sequence[Row], drawn: dict[str, Chart]) -> Iterator[str]:
    how = (
        f"{found['done']} of {found['trials']} trials of {found['env']}, {found['pruned']} of them "
        f"pruned; {_each(found)}"
    )
    yield f'<h1>{html.escape(found["name"])}</h1><p class="soft">{html.escape(how)}</p>'
    yield "<h2>The best</h2>" + _table(rows)
    yield "<h2>Reward of each trial</h2>"
    yield chart_place("history", drawn, "Unknown: no trial is complete yet.")
    yield "<h2>What decides the reward</h2>"
    yield chart_place("importance", drawn, "Unknown: too few trials are complete, or all alike.")
    yield "<h2>All settings of all trials</h2>"
    yield '<p class="soft">A line a trial; the darker, the better, and the best one is red.</p>'
    yield chart_place("parallel", drawn, "Unknown: fewer than two trials are complete.")
    yield f"<footer><p>{_TOLD}</p></footer>"


def _each(found: Mapping[str, Any]) -> str:
    seeds = f"{len(found['seeds'])} seeds each" if len(found["seeds"]) > 1 else "one seed each"
    if found["budget_s"] is not None:
        return f"{seeds}, {found['budget_s']:g} s of training a seed."
    return f"{seeds}, {found['timesteps']:,} steps a seed."


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return '<p class="soft">Unknown: no trial is complete yet.</p>'
    best = sorted(rows, key=lambda row: -row["value"])[:_BEST_SHOWN]
    names = list(best[0]["drawn"])
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in ("trial", "reward", *names))
    lines = "".join(
        f"<tr{' class=first' if place == 0 else ''}>"
        + "".join(f"<td>{html.escape(text)}</td>" for text in _cells(row, names))
        + "</tr>"
        for place, row in enumerate(best)
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    drawn = row["drawn"]
    return [str(row["number"]), f"{row['value']:.1f}", *(_told(drawn.get(n)) for n in names)]


def _told(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _history(rows: Sequence[Row]) -> Chart | None:
    if not rows:
        return None
    numbers, values = [row["number"] for row in rows], [short(row["value"]) for row in rows]
    each = {"x": numbers, "y": values, "name": "reward", "mode": "markers"}
    best = {"x": numbers, "y": list(accumulate(values, max)), "name": "best so far"}
    data = [
        {**each, "marker": {"color": colour(0)}},
        {**best, "mode": "lines", "line": {"color": colour(1), "shape": "hv"}},
    ]
    layout = {**plain_layout(280), "xaxis": axis("trial"), "yaxis": axis("reward")}
    return {"data": data, "layout": layout}


def _importance(importances: Mapping[str, float]) -> Chart | None:
    if not importances:
        return None
    names = list(importances)[::-1]
    data = {
        "type": "bar",
        "orientation": "h",
        "x": [short(importances[name]) for name in names],
        "y": [html.escape(name) for name in names],
        "marker": {"color": colour(0)},
        "hovertemplate": "%{x:.0%}",
        "name": "",
    }
    layout = plain_layout(80 + 28 * len(names))
    layout["margin"] = {**layout["margin"], "l": 120}
    return {
        "data": [data],
        "layout": {**layout, "xaxis": axis(tickformat=".0%"), "yaxis": axis()},
    }


def _parallel(rows: Sequence[Row]) -> Chart | None:
    """Plain lines, as plotly's own chart of this kind needs WebGL and to evaluate code."""
    if len(rows) < 2:
        return None
    order = sorted(rows, key=lambda row: row["value"])
    columns = {name: [row["drawn"].get(name) for row in order] for name in order[0]["drawn"]}
    columns["reward"] = [row["value"] for row in order]
    scales = {name: _heights(values) for name, values in columns.items()}
    lines = []
    for place, row in enumerate(order):
        shade = len(_SHADES) - 1 if place == len(order) - 1 else place * 5 // len(order)
        told = "<br>".join(html.escape(f"{n} {_told(columns[n][place])}") for n in columns)
        lines.append(
            {
                "x": list(range(len(columns))),
                "y": [scales[name][place] for name in columns],
                "mode": "lines",
                "name": "",
                "line": {"color": _SHADES[shade], "width": 3 if shade == 5 else 1.5},
                "hovertemplate": f"trial {row['number']}<br>{told}",
            }
        )
    return {"data": lines, "layout": _parallel_layout(columns)}


def _parallel_layout(columns: Mapping[str, Sequence[Any]]) -> Chart:
    ends = []
    for place, values in enumerate(columns.values()):
        low, high = _ends(values)
        for height, text, anchor in ((0, low, "top"), (1, high, "bottom")):
            ends.append(
                {
                    "x": place,
                    "y": height,
                    "text": html.escape(text),
                    "showarrow": False,
                    "yanchor": anchor,
                }
            )
    names = [f"<br>{html.escape(name)}" for name in columns]
    across = axis(tickvals=list(range(len(names))), ticktext=names)
    up = axis(range=[-0.1, 1.1], showticklabels=False, showgrid=False)
    return {**plain_layout(420), "xaxis": across, "yaxis": up, "annotations": ends}


def _heights(values: Sequence[Any]) -> list[float]:
    """Between 0 and 1: numbers by how large they are, or by their logarithms; else by order."""
    if not _are_numbers(values):
        kinds = _kinds(values)
        return [round(kinds.index(str(v)) / max(1, len(kinds) - 1), 4) for v in values]
    numbers = [float(value) for value in values]
    if min(numbers) > 0 and max(numbers) / min(numbers) > 50:
        numbers = [math.log(number) for number in numbers]
    low, high = min(numbers), max(numbers)
    return [round((n - low) / ((high - low) or 1.0), 4) for n in numbers]


def _ends(values: Sequence[Any]) -> tuple[str, str]:
    if _are_numbers(values):
        return _told(min(values)), _told(max(values))
    kinds = _kinds(values)
    return kinds[0], kinds[-1]


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _kinds(values: Sequence[Any]) -> list[str]:
    return sorted({str(value) for value in values}, key=lambda kind: (len(kind), kind))
