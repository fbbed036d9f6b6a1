"""`stoker report`: where the time of runs went, as a page, as a trace, or as figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from stoker.cli.flags import find_run, parse
from stoker.dashboard.figures import figures_of
from stoker.dashboard.page import MOST_RUNS, page
from stoker.dashboard.trace import trace
from stoker.errors import ConfigError, RunError, StokerError
from stoker.runs.folder import REPORT_NAME, RunFolder
from stoker.runs.reader import read_run
from stoker.runs.strict_json import dumps, write_atomically


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Say where the time of a run went, beside its speed and its reward; or compare several.

    Writes a page that needs no network: report.html in the run's folder, or where runs lie if they
    are several. Works on runs that train, that ended and that died.
    """

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Names of runs, or paths of their folders."""
    out: Path | None = None
    """Where to write the page instead."""
    trace: Path | None = None
    """Write a trace for ui.perfetto.dev or chrome://tracing to this file, and no page unless --out
    is given."""
    json: bool = False
    """Print the figures as one JSON object, null for unknown, and write no page unless --out is
    given."""
    runs_dir: str = "runs"
    """Where run folders lie."""


def report(arguments: list[str]) -> int:
    """`stoker report`."""
    given = parse(ReportArguments, arguments, "report")
    if not 1 <= len(given.runs) <= MOST_RUNS:
        raise ConfigError(f"{len(given.runs)} runs are named; name 1 to {MOST_RUNS}.")
    paths = [RunFolder.open(find_run(name, given.runs_dir)).path for name in given.runs]
    runs = [read_run(path) for path in paths]
    if given.json:
        print(dumps({"runs": [figures_of(run)._asdict() for run in runs]}))
    if given.trace is not None:
        _write(given.trace, dumps(trace(runs)), "--trace", told=not given.json)
    if given.out is not None or not (given.json or given.trace):
        alone = paths[0] if len(paths) == 1 else Path(given.runs_dir)
        out = given.out or alone / REPORT_NAME
        _write(out, page(runs, plotly_js()), "--out", told=not given.json)
    return 0


def _write(path: Path, text: str, flag: str, told: bool) -> None:
    if path.is_dir():
        raise RunError(f"{path} is a folder. Name a file in it with {flag}.")
    try:
        write_atomically(path, text)
    except OSError as error:
        raise RunError(
            f"Cannot write {path}: {error.strerror}. Choose another place with {flag}."
        ) from error
    if told:
        print(f"{path}, {len(text.encode()) / 1e6:.1f} MB")


def plotly_js() -> str:
    """Plotly's own script, which it ships."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise StokerError(
            "A page needs plotly, which is not installed: pip install 'stoker[web]'. --json and "
            "--trace work without it."
        ) from error
    return str(get_plotlyjs())
