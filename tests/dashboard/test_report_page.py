"""The page: small, whole, and text stays text; then in a browser, at two widths."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import VERDICT, make_run, stretches
from plotly.offline import get_plotlyjs

from stoker.dashboard import charts
from stoker.dashboard.page import MOST_RUNS, json_in_html, page
from stoker.runs.folder import METRICS_NAME, STATUS_NAME, TIMELINE_NAME
from stoker.runs.reader import Run, read_run

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
HOSTILE_NAME = '"><img src=x onerror=window.hacked=1>'
MB = 1e6
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def test_every_utilisation_figure_stands_beside_speed_and_reward(tmp_path: Path) -> None:
    text = page([read_run(make_run(tmp_path))], "")
    cells = re.findall(r'<th scope="row">(.*?)</th><td[^>]*>(.*?)</td>', text)
    assert dict(cells) == {
        "environment": "CartPole-v1",
        "state": "finished",
        "hardware": "H200, 16 cores",
        "steps": "20,000",
        "wall-clock time": "1 min 40 s",
        "steps a second": "200",
        "reward, last 100 episodes": "475.5",
        "reward, evaluated": "500.0",
        "GPU busy": "50%",
        "SM active": "25%",
        "GPU memory": "20.0 GiB",
        "GPU power": "300 W",
        "energy a million steps": "1,500 kJ",
        "CPU": "80%",
        "overlap efficiency": "75%",
    }
    assert VERDICT in text
    assert "200 steps/s, reward 475.5" in text


def test_what_is_unknown_reads_so_and_never_0(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in (STATUS_NAME, METRICS_NAME, TIMELINE_NAME):
        (run / name).unlink()
    text = page([read_run(run)], "")
    values = dict(re.findall(r'<th scope="row">(.*?)</th><td[^>]*>(.*?)</td>', text))
    assert values.pop("environment") == "CartPole-v1"
    assert set(values.values()) == {"unknown"}
    assert "There is no timeline" in text
    assert '<div class="chart"' not in text


def test_text_of_a_run_is_never_markup(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, HOSTILE_NAME, env=HOSTILE, verdict=HOSTILE, gpu=HOSTILE, trouble=HOSTILE
    )
    text = page([read_run(run), read_run(run)], "")
    assert "<img" not in text
    assert text.count("<script") == text.count("</script") == 3
    charted = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)
    assert charted is not None
    assert "&lt;img" in json.loads(charted[1])["reward"]["data"][0]["name"]


def test_json_in_a_page_cannot_end_its_element_and_comes_back_as_it_was() -> None:
    value = {"a": HOSTILE, "b": "\u2028 & <!--", "c": [1.5, None]}
    assert not set("<>&\u2028") & set(json_in_html(value))
    assert json.loads(json_in_html(value)) == value


def test_runs_are_drawn_on_the_same_scales(tmp_path: Path) -> None:
    slow = read_run(make_run(tmp_path, "slow", timeline=stretches(150)))
    weak = [each._replace(gpu={"power_w": 100.0}) for each in stretches(50)]
    quick = read_run(make_run(tmp_path, "quick", timeline=weak))
    scale = charts.scale_of([slow, quick])
    drawn = [charts.timeline(run, scale, 2) for run in (slow, quick)]
    layouts = [chart["layout"] for chart in drawn if chart is not None]
    assert [layout["xaxis"]["range"] for layout in layouts] == [[0, 150.0]] * 2
    assert [layout["yaxis4"]["range"] for layout in layouts] == [[0, pytest.approx(324.0)]] * 2


def test_phases_of_a_chart_fill_the_time_and_gaps_are_unknown(tmp_path: Path) -> None:
    lost = [each if each.at < 50 else each._replace(gpu={}) for each in stretches()]
    run = read_run(make_run(tmp_path, timeline=lost))
    chart = charts.timeline(run, charts.scale_of([run]), 1)
    assert chart is not None
    for thread in ("learner", "collector"):
        shares = [trace["y"] for trace in chart["data"] if trace.get("stackgroup") == thread]
        assert len(shares) >= 2
        assert all(sum(column) == pytest.approx(1.0) for column in zip(*shares, strict=True))
    (busy,) = (trace for trace in chart["data"] if trace["name"] == "GPU busy")
    assert (busy["y"][0], busy["y"][-1], busy["connectgaps"]) == (0.5, None, False)


def test_the_largest_page_is_below_6_mb(tmp_path: Path) -> None:
    """As many runs as fit, each of them long and logged often, with numbers of many digits."""
    run = make_run(tmp_path, timeline=[])
    made = read_run(run)
    metrics = [
        {"env_steps": n, "wall_s": n * 10 / 3, "rollout/ep_rew_mean": n / 3, "time/fps": n / 7}
        for n in range(5_000)
    ]
    threads = {
        name: {phase: 10 / (3 + place) for place, phase in enumerate(charts.PHASES)}
        for name in ("learner", "collector")
    }
    gpu = {"busy": 1 / 3, "sm_active": 1 / 7, "memory_used_gib": 20 / 3, "power_w": 1000 / 3}
    made = made._replace(metrics=metrics)
    timeline = [
        template._replace(at=16 * number + 1 / 3, seconds=16.0, threads=threads, gpu=gpu)
        for number, template in enumerate(stretches(1) * 2600)
    ]
    for runs in ([timeline], [timeline[:200]] * MOST_RUNS):
        assert len(page([made._replace(timeline=t) for t in runs], get_plotlyjs())) < 6 * MB


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A hostile one, one without a GPU, and one that has nothing but its settings."""
    where = tmp_path_factory.mktemp("runs")
    hostile = make_run(where, HOSTILE_NAME, env=HOSTILE, verdict=HOSTILE)
    without = make_run(where, "a-run-with-a-rather-long-name", timeline=stretches(40, gpu=False))
    bare = make_run(where, "bare")
    for name in (STATUS_NAME, METRICS_NAME, TIMELINE_NAME):
        (bare / name).unlink()
    return [read_run(path) for path in (hostile, without, bare)]


def drawn_widths(shown: Any) -> list[float]:
    drawn: list[float] = shown.evaluate(
        "[...document.querySelectorAll('.chart .main-svg')]"
        ".map(drawn => drawn.getBoundingClientRect().width)"
    )
    return drawn


def assert_charts_fit(shown: Any, width: int) -> None:
    """Each in its frame, which is nearly as wide as the screen."""
    frames = shown.locator(".chart")
    assert frames.count() == 4  # reward, speed and two timelines
    for number in range(frames.count()):
        frame = frames.nth(number).bounding_box()
        drawn = frames.nth(number).locator(".main-svg").first.bounding_box()
        assert drawn["width"] > 0.75 * width
        assert 0 <= drawn["x"] <= drawn["x"] + drawn["width"] <= width
        assert drawn["height"] > 200
        assert drawn["y"] >= frame["y"]
        assert drawn["y"] + drawn["height"] <= frame["y"] + frame["height"]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_a_browser_shows_it_without_an_error_and_asks_nobody(
    browser: Any, runs: list[Run], tmp_path: Path, width: int, scheme: str
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(runs, get_plotlyjs()))
    assert file.stat().st_size < 6 * MB
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    shown, told, asked = context.new_page(), [], []
    shown.on("console", lambda message: told.append(message.text))
    shown.on("pageerror", lambda error: told.append(str(error)))
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("requestfailed", lambda request: told.append(f"failed: {request.url}"))
    shown.goto(file.as_uri())
    assert [url for url in asked if url != file.as_uri() and not url.startswith("data:")] == []
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img").count() == 0
    assert_charts_fit(shown, width)
    # Nothing is wider than the screen, but for the table, which scrolls by itself.
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    smallest = shown.evaluate(
        "Math.min(...[...document.querySelectorAll('p,td,th,li,.chart text')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 11
    dark = shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    assert dark == (scheme == "dark")
    shown.set_viewport_size({"width": 700, "height": 900})
    deadline = time.monotonic() + 20
    while max(drawn_widths(shown)) > 700 or min(drawn_widths(shown)) < 600:
        assert time.monotonic() < deadline
        shown.wait_for_timeout(20)
    assert_charts_fit(shown, 700)
    assert told == []
    context.close()
