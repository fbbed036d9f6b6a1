"""report.html: one run, or several beside each other, in one file that needs no network.

What comes from a run (names, environments, words of its verdict) is text, never markup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib import resources
from typing import Any

from stoker.dashboard import charts
from stoker.dashboard.charts import Chart
from stoker.dashboard.figures import Figures, figures_of
from stoker.runs.reader import Run

MOST_RUNS = 24
"""On one page."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_TOLD = (
    "Busy is the share of time with any kernel running, SM active the share of the chip that had "
    "work. Both are symptoms: more epochs or a wider network raise them without reaching a reward "
    "sooner. What counts is steps a second, and the reward over wall-clock time. Energy is the "
    "GPU's mean power times the wall-clock time. What was not measured is unknown."
)


def page(runs: Sequence[Run], plotly_js: str) -> str:
    """The whole page, as text."""
    figures = [figures_of(run) for run in runs]
    drawn = dict(_charts(runs))
    title = " and ".join(each.name for each in figures[:3]) + (" and others" if runs[3:] else "")
    body = "\n".join(_body(title, figures, drawn))
    return document(f"{title}: where the time went", body, drawn, plotly_js)


def document(title: str, body: str, drawn: dict[str, Chart], plotly_js: str) -> str:
    """A page with charts, each in the element that has its name; it asks nobody for anything."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_own("page.css")}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="charts">{json_in_html(drawn)}</script>
<script>{plotly_js}</script>
<script>{_own("page.js")}</script>
</body>
</html>
"""


def json_in_html(value: Any) -> str:
    """JSON that nothing in it can lead out of the element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _charts(runs: Sequence[Run]) -> Iterator[tuple[str, Chart]]:
    """By the place on the page; what there is nothing to draw of is left out."""
    scale = charts.scale_of(runs)
    shown: list[tuple[str, Chart | None]] = [
        ("reward", charts.curve(runs, "rollout/ep_rew_mean", scale, "mean reward")),
        ("speed", charts.curve(runs, "time/fps", scale, "steps/s", from_zero=True)),
    ]
    for place, run in enumerate(runs):
        shown.append((f"timeline-{place}", charts.timeline(run, scale, len(runs))))
    return ((place, chart) for place, chart in shown if chart is not None)


def _body(title: str, figures: Sequence[Figures], drawn: dict[str, Chart]) -> Iterator[str]:
    yield f'<h1>{escape(title)}</h1><p class="soft">Where the time went, and what came of it.</p>'
    yield _table(figures)
    yield "<h2>Verdict</h2>"
    yield from (_verdict(each, place, len(figures)) for place, each in enumerate(figures))
    yield "<h2>Reward over wall-clock time</h2>" + _runs_legend(figures)
    yield chart_place("reward", drawn, "Unknown: no reward was logged.")
    yield "<h2>Steps a second</h2>" + _runs_legend(figures)
    yield chart_place("speed", drawn, "Unknown: no speed was logged.")
    yield "<h2>Where the time went</h2>"
    if len(figures) > 1:
        yield '<p class="soft">All runs on the same scales.</p>'
    for place, each in enumerate(figures):
        yield _timeline(each, place, len(figures), drawn)
    yield f"<footer><p>{_TOLD}</p></footer>"


def _table(figures: Sequence[Figures]) -> str:
    heads = "".join(
        f'<th scope="col">{_dot(charts.colour(place))}{escape(each.name)}</th>'
        for place, each in enumerate(figures)
    )
    rows = "".join(
        f'<tr{_FIRST.get(name, "")}><th scope="row">{name}</th>'
        + "".join(_cell(tell(each)) for each in figures)
        + "</tr>"
        for name, tell in _ROWS.items()
        if name not in _OPTIONAL or any(tell(each) is not None for each in figures)
    )
    return (
        f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str | None) -> str:
    return '<td class="unknown">unknown</td>' if text is None else f"<td>{escape(text)}</td>"


def _number(value: float | None, form: str, unit: str = "") -> str | None:
    return None if value is None else format(value, form) + unit


def _share(value: float | None) -> str | None:
    return _number(value, ".0%")


def _energy(kilojoules: float | None) -> str | None:
    large = kilojoules is not None and kilojoules >= 100
    return _number(kilojoules, ",.0f" if large else ".3g", " kJ")


def _hardware(each: Figures) -> str | None:
    if each.cores is None:
        return None
    cores = "1 core" if each.cores == 1 else f"{each.cores} cores"
    return f"{each.gpu}, {cores}" if each.gpu else f"no GPU, {cores}"


def _steps(each: Figures) -> str | None:
    if each.steps is None:
        return None
    return f"{each.steps:,}" + (f", of {each.agents} agents" if each.agents > 1 else "")


def _wall(each: Figures) -> str | None:
    if each.wall_s is None:
        return None
    minutes, seconds = divmod(round(each.wall_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


_ROWS: dict[str, Callable[[Figures], str | None]] = {
    "environment": lambda each: each.env,
    "state": lambda each: each.state,
    "hardware": _hardware,
    "steps": _steps,
    "wall-clock time": _wall,
    "steps a second": lambda each: _number(each.sps, ",.0f"),
    "reward, last 100 episodes": lambda each: _number(each.reward, ".1f"),
    "reward of the best agent": lambda each: _number(each.best_agent_reward, ".1f"),
    "reward, evaluated": lambda each: _number(each.eval_reward, ".1f"),
    "GPU busy": lambda each: _share(each.gpu_busy),
    "SM active": lambda each: _share(each.sm_active),
    "GPU memory": lambda each: _number(each.gpu_memory_gib, ".1f", " GiB"),
    "GPU power": lambda each: _number(each.gpu_power_w, ",.0f", " W"),
    "energy a million steps": lambda each: _energy(each.gpu_kj_per_million_steps),
    "CPU": lambda each: _share(each.cpu),
    "overlap efficiency": lambda each: _share(each.overlap_efficiency),
    "trouble": lambda each: each.trouble,
}
_OPTIONAL = {"reward of the best agent", "trouble"}
_FIRST = dict.fromkeys(("steps a second", "reward, last 100 episodes"), ' class="first"')


def _verdict(each: Figures, place: int, runs: int) -> str:
    named = f"<h3>{_dot(charts.colour(place))}{escape(each.name)}</h3>" if runs > 1 else ""
    said = f"<p>{escape(each.verdict)}</p>" if each.verdict else ""
    missing = "".join(f'<p class="soft">{escape(line)}</p>' for line in each.missing)
    return f'{named}<div class="verdict">{said}{missing}</div>'


def _timeline(each: Figures, place: int, runs: int, drawn: dict[str, Chart]) -> str:
    named = f"<h3>{_dot(charts.colour(place))}{escape(each.name)}</h3>" if runs > 1 else ""
    speed = _number(each.sps, ",.0f") or "unknown"
    reward = _number(each.reward, ".1f") or "unknown"
    beside = f'<p class="soft">{speed} steps/s, reward {reward}</p>'
    legends = "".join(_phase_legend(thread, spent) for thread, spent in each.phases.items())
    chart = chart_place(f"timeline-{place}", drawn, "Unknown: this run has no timeline.")
    return named + beside + legends + chart + (_machine_legend(each) if each.phases else "")


def _phase_legend(thread: str, spent: dict[str, float]) -> str:
    order = [*charts.PHASES, *sorted(set(spent) - set(charts.PHASES))]
    items = "".join(
        _item(*charts.PHASES.get(phase, (phase, "#777777")), f"{spent[phase]:.0%}")
        for phase in order
        if spent.get(phase, 0.0) >= 0.005
    )
    return f'<ul class="legend"><li><b>{escape(thread)}</b></li>{items}</ul>'


def _machine_legend(each: Figures) -> str:
    told = [*zip(charts.IN_USE, (each.gpu_busy, each.sm_active, each.cpu), strict=True)]
    items = "".join(_item(*known, _share(share) or "unknown") for known, share in told)
    return f'<ul class="legend"><li><b>in use</b></li>{items}</ul>'


def _runs_legend(figures: Sequence[Figures]) -> str:
    if len(figures) == 1:
        return ""
    items = (_item(each.name, charts.colour(place)) for place, each in enumerate(figures))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _item(name: str, colour: str, value: str = "") -> str:
    return f"<li>{_dot(colour)}{escape(name)} {escape(value)}</li>"


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background:{colour}"></span>'


def chart_place(place: str, drawn: dict[str, Chart], otherwise: str) -> str:
    """Where a chart goes, or what is said instead."""
    if place in drawn:
        height = drawn[place]["layout"]["height"]  # which plotly lets go of while a window changes
        return f'<div class="chart"><div id="{place}" style="height:{height}px"></div></div>'
    return f'<p class="soft">{otherwise}</p>'
