"""Charts as plotly draws them: plain data and layouts, made without plotly."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from stoker.runs.reader import Run, Stretch, number_of, squeezed

PHASES = {
    "env": ("environments", "#3f9b62"),
    "inference": ("inference", "#2f9fb3"),
    "store": ("storing", "#5b7fc7"),
    "wait": ("waiting for a rollout", "#b5c4b1"),
    "update": ("updates", "#a35a9d"),
    "eval": ("evaluation", "#d3a03a"),
    "save": ("saving", "#c65d43"),
    "log": ("logging", "#8b9099"),
    "other": ("other", "rgba(128,128,128,0.25)"),
}
"""What each phase is called, and its colour; in this order from the bottom of a chart."""
_RUNS = ("#2f6db3", "#c65d43", "#3f9b62", "#a35a9d", "#b98a1f", "#2f9fb3")
IN_USE = (("GPU busy", "#2f6db3"), ("SM active", "#d3a03a"), ("CPU", "#8b9099"))
_POWER = "#c65d43"
_MOST_STRETCHES = 2400  # of all runs together, so that a page stays small
_MOST_POINTS = 4000
_THREAD_PX, _MACHINE_PX, _GAP_PX = 130, 110, 44
_GRID = "rgba(128,128,128,0.22)"

Chart = dict[str, Any]
"""`data` and `layout`, for `Plotly.newPlot`."""


class Scale(NamedTuple):
    """What the axes of all runs have in common."""

    seconds: float
    """A unit of time, in seconds."""
    unit: str
    until: float
    """The end of the longest run, in that unit."""
    watts: float
    """The highest power of any."""


def scale_of(runs: Sequence[Run]) -> Scale:
    """One for all, so that charts can be held against each other."""
    ends = [each.at + each.seconds for run in runs for each in run.timeline[-1:]]
    ends += [at for run in runs for line in run.metrics[-1:] if (at := number_of(line, "wall_s"))]
    end = max(ends, default=1.0)
    seconds, unit = (
        (3600.0, "hours") if end > 7200 else (60.0, "minutes") if end > 180 else (1, "s")
    )
    watts = [each.gpu["power_w"] for run in runs for each in run.timeline if "power_w" in each.gpu]
    return Scale(seconds, unit, end / seconds, max(watts, default=0.0))


def colour(place: int) -> str:
    """Of a run, by its place on the page."""
    return _RUNS[place % len(_RUNS)]


def curve(
    runs: Sequence[Run], metric: str, scale: Scale, title: str, from_zero: bool = False
) -> Chart | None:
    """A metric over wall-clock time, a line a run; None if no run has logged it."""
    most = max(50, _MOST_POINTS // len(runs))
    lines = []
    for place, run in enumerate(runs):
        points = list(_logged(run, metric))
        if points:
            thinned = _thinned(points, most)
            lines.append(
                {
                    "x": [round(at / scale.seconds, 4) for at, _ in thinned],
                    "y": [short(value) for _, value in thinned],
                    "name": html.escape(run.summary.name),
                    "mode": "lines" if len(thinned) > 1 else "markers",
                    "line": {"color": colour(place), "width": 2},
                }
            )
    if not lines:
        return None
    up = axis(title=title, rangemode="tozero" if from_zero else "normal")
    return {"data": lines, "layout": {**_layout(scale, height=280), "yaxis": up}}


def _logged(run: Run, metric: str) -> Iterator[tuple[float, float]]:
    for line in run.metrics:
        at, value = number_of(line, "wall_s"), number_of(line, metric)
        if at is not None and value is not None:
            yield at, value


def _thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Means of as many neighbours as it takes."""
    each = -(-len(points) // most)
    groups = (points[first : first + each] for first in range(0, len(points), each))
    return [(_mean([at for at, _ in g]), _mean([value for _, value in g])) for g in groups]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def timeline(run: Run, scale: Scale, runs: int) -> Chart | None:
    """What each thread did, over the GPU and the cores in use, over power; None without any."""
    stretches = squeezed(run.timeline, max(50, _MOST_STRETCHES // runs))
    if not stretches:
        return None
    threads = list(dict.fromkeys(name for each in stretches for name in each.threads))
    panels: list[tuple[str, int, list[Chart], Chart]] = []
    share = axis(range=[0, 1.02], tickformat=".0%", tickvals=[0, 0.5, 1])
    for name in threads:
        panels.append((f"{name}'s thread", _THREAD_PX, _phases(stretches, name, scale), share))
    panels.append(("in use", _MACHINE_PX, list(_in_use(stretches, scale)), share))
    if any("power_w" in each.gpu for each in stretches):
        power = _line(stretches, "gpu", "power_w", "GPU power, W", _POWER, scale)
        panels.append(("GPU power, W", _MACHINE_PX, [power], axis(range=[0, 1.08 * scale.watts])))
    return _stacked(panels, scale)


def _phases(stretches: Sequence[Stretch], thread: str, scale: Scale) -> list[Chart]:
    seen = {phase for each in stretches for phase in each.threads.get(thread, {})}
    known = [phase for phase in PHASES if phase in seen]
    traces = []
    for phase in [*known, *sorted(seen - set(PHASES)), "other"]:
        shown, fill = PHASES.get(phase, (phase, "#777777"))
        shares = [_share(each, thread, phase) for each in stretches]
        traces.append(
            {
                "x": _ends(stretches, scale),
                "y": [round(value, 4) for value in [*shares, shares[-1]]],
                "name": html.escape(shown),
                "stackgroup": thread,
                "mode": "lines",
                "line": {"width": 0, "shape": "hv"},
                "fillcolor": fill,
                "hovertemplate": "%{y:.0%}",
            }
        )
    return traces


def _share(each: Stretch, thread: str, phase: str) -> float:
    spent = each.threads.get(thread, {})
    whole = max(each.seconds, sum(spent.values()))
    return (whole - sum(spent.values()) if phase == "other" else spent.get(phase, 0.0)) / whole


def _in_use(stretches: Sequence[Stretch], scale: Scale) -> Iterator[Chart]:
    found = (("gpu", "busy"), ("gpu", "sm_active"), ("host", "cpu"))
    for (place, name), (shown, colour) in zip(found, IN_USE, strict=True):
        yield _line(stretches, place, name, shown, colour, scale)


def _line(
    stretches: Sequence[Stretch], place: str, name: str, shown: str, colour: str, scale: Scale
) -> Chart:
    """A figure over time; a gap where it is unknown."""
    values = [getattr(each, place).get(name) for each in stretches]
    rounded = [None if value is None else short(value) for value in values]
    return {
        "x": _ends(stretches, scale),
        "y": [*rounded, rounded[-1]],
        "name": shown,
        "mode": "lines",
        "connectgaps": False,
        "line": {"color": colour, "width": 1.5, "shape": "hv"},
        "hovertemplate": "%{y:.3~g} W" if name == "power_w" else "%{y:.0%}",
    }


def _ends(stretches: Sequence[Stretch], scale: Scale) -> list[float]:
    """Where each begins, and where the last one ends."""
    last = stretches[-1]
    return [round(at / scale.seconds, 4) for at in (*(e.at for e in stretches), sum(last[:2]))]


def _stacked(panels: Sequence[tuple[str, int, list[Chart], Chart]], scale: Scale) -> Chart:
    """Panels one below another, over one axis of time."""
    inner = sum(height for _, height, _, _ in panels) + _GAP_PX * (len(panels) - 1)
    layout = _layout(scale, inner + 96)
    data, titles, top = [], [], 1.0
    for number, (title, height, traces, axis) in enumerate(panels, 1):
        suffix = "" if number == 1 else str(number)
        bottom = max(0.0, top - height / inner)
        layout[f"yaxis{suffix}"] = {**axis, "domain": [round(bottom, 4), round(top, 4)]}
        data += [{**trace, "yaxis": f"y{suffix}"} for trace in traces]
        placed = {"xref": "paper", "yref": "paper", "x": 0, "y": round(top, 4)}
        anchored = {"xanchor": "left", "yanchor": "bottom", "showarrow": False}
        titles.append({**placed, **anchored, "text": f"<b>{html.escape(title)}</b>"})
        top = bottom - _GAP_PX / inner
    layout["xaxis"]["anchor"] = f"y{len(panels)}" if len(panels) > 1 else "y"
    return {"data": data, "layout": {**layout, "annotations": titles}}


def _layout(scale: Scale, height: int) -> Chart:
    across = axis(title=f"wall-clock time, {scale.unit}", range=[0, round(scale.until, 4)])
    return {**plain_layout(height), "hovermode": "x", "xaxis": across}


def plain_layout(height: int) -> Chart:
    """What all charts have in common."""
    return {
        "height": height,
        "margin": {"l": 52, "r": 12, "t": 28, "b": 48},
        "showlegend": False,
        "dragmode": "zoom",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def axis(title: str = "", **more: Any) -> Chart:
    """With a title, if it has one, and whatever else plotly knows of axes."""
    named = {"title": {"text": title, "standoff": 8}} if title else {}
    return {"gridcolor": _GRID, "zeroline": False, "fixedrange": False, **named, **more}


def short(value: float) -> float:
    """Five digits: more than a chart can show."""
    return float(f"{value:.5g}")
