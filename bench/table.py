"""`python -m bench table`: tables and plots of what `bench/results` holds, in docs/comparison.

The same results give the same text, to the letter, so that a test can tell when they part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from bench.record import RESULTS
from bench.targets import TARGETS, Found, Target

DOCS = Path(__file__).parent.parent / "docs" / "comparison"
_MADE = "Made by `python -m bench table` from `bench/results`; not to be edited."
_UNKNOWN, _NOT_ASKED = "unknown", "not asked"
_NOTHING = (_UNKNOWN, _NOT_ASKED, "")
Results = Mapping[str, Mapping[str, Any]]
"""Of each file, by its name without `.json`."""


def write(results: Path = RESULTS, docs: Path = DOCS) -> None:
    """Write every table, and the plots if matplotlib is there."""
    found = read(results)
    docs.mkdir(parents=True, exist_ok=True)
    for name, text in pages(found).items():
        (docs / name).write_text(text)
    try:
        from bench.plots import draw
    except ModuleNotFoundError as error:
        print(f"No plots: {error.name} is not installed; pip install '.[bench]'.")
        return
    draw(found, docs)


def read(folder: Path) -> Results:
    """All results, by file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def pages(results: Results) -> dict[str, str]:
    """The text of each page, by its file's name."""
    return {
        "peers.md": _page("Stoker beside its peers", _peers(results)),
        "targets.md": _page("What was to be reached", _targets(results)),
        "measurements.md": _page("Every measurement", _measurements(results)),
    }


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", _MADE, "", *lines]).rstrip() + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]


def _machine(found: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    chip = f"one {found['gpu']}, " if found["gpu"] else ""
    return f"{chip}{found['cores']} cores; Python {found['python']}, {versions}"


def _note(found: Mapping[str, Any]) -> str:
    """What a file of results has to say of itself."""
    return f" {found['note']}" if "note" in found else ""


def _peers(results: Results) -> Iterator[str]:
    files = [name for name in ("peers-gpu", "peers-cpu") if name in results]
    if not files:
        yield "Nothing is kept yet: `python -m bench peers --save` measures it."
        return
    yield (
        "PPO of the same sizes for all, but where environments wait: there peers have as many as "
        "their processes leave memory for, and Stoker 1,024 in flight. Each framework's own "
        "trainer in a process of its own, by turns on the same machine in the same run. Stoker "
        "normalises "
        "observations and rewards, as it does by default; the peers do not. "
        "Busy is NVML's, SM active GPM's; memory is of "
        "the host, with all of a trainer's processes. The time to the reward begins with the "
        "command. Rewards are of the last hundred training episodes, with the mean's 95 % "
        "confidence interval over the seeds."
    )
    for name in files:
        found = results[name]
        yield from ("", f"Measured on {_machine(found)}.{_note(found)}")
        for case in dict.fromkeys(row["case"] for row in found["rows"]):
            rows = [row for row in found["rows"] if row["case"] == case]
            yield from ("", f"## {case}", "", *_case(rows), "", *_remarks(rows))


_HEAD = (
    "trainer",
    "steps/s",
    "ours is",
    "GPU busy",
    "SM active",
    "power",
    "J per million steps",
    "host memory",
    "start-up",
    "time to the reward",
    "reward at equal steps",
)


def _case(rows: Sequence[Found]) -> list[str]:
    """Ours first, then the quickest; those who cannot, or failed, at the end."""
    ranked = sorted(rows, key=lambda row: (row["peer_name"] is not None, -(row["peer"] or 0.0)))
    lines = [_cells(row) for row in ranked]
    # What is not known of anyone has no column, but for the first three.
    told = [any(cell not in _NOTHING for cell in column) for column in zip(*lines, strict=True)]
    told[:3] = [True] * 3
    return _table(list(compress(_HEAD, told)), [list(compress(line, told)) for line in lines])


def _cells(row: Found) -> list[str]:
    details = row["details"] or {}
    name = row["peer_name"] or "**Stoker**"
    reason = details.get("cannot") or details.get("failed")
    rates = details.get("steps_per_s")
    if not rates:
        word = "cannot" if details.get("cannot") else "failed"
        return [name, f"{word}: {reason}", *[""] * (len(_HEAD) - 2)]
    gpu = details.get("gpu") or {}
    learning = details.get("learning") or {}
    rate = row["ours"] if row["peer_name"] is None else row["peer"]
    spread = f"{number(rate)} ({number(min(rates))} to {number(max(rates))})"
    return [
        name,
        spread,
        f"{row['ratio']:g} x" if row["ratio"] else "",
        _with_unit(gpu.get("busy_%"), "%"),
        _with_unit(gpu.get("sm_active_%"), "%"),
        _with_unit(gpu.get("power_w"), "W"),
        _with_unit(details.get("joules_per_million_steps"), "J"),
        _with_unit(details.get("host_memory_mb"), "MB"),
        _with_unit(learning.get("start_up_s"), "s", _NOT_ASKED),
        _time_to_goal(learning),
        _reward(learning),
    ]


def _with_unit(value: float | None, unit: str, otherwise: str = _UNKNOWN) -> str:
    return otherwise if value is None else f"{number(value)} {unit}"


def _time_to_goal(learning: Found) -> str:
    if learning.get("goal") is None:
        return _NOT_ASKED
    if learning.get("goal_s") is None:
        spent = learning.get("given_up_after_s")
        return _UNKNOWN if spent is None else f"not reached in {spent:g} s of training"
    steps = number(learning["goal_steps"])
    return f"{learning['goal_s']:g} s to {learning['goal']:g} ({steps} steps)"


def _reward(learning: Found) -> str:
    if learning.get("reward") is None:
        return _NOT_ASKED if "rewards" not in learning else _UNKNOWN
    ends = learning["reward_interval_95"]
    interval = f" ({ends[0]:g} to {ends[1]:g})" if ends else ""
    return f"{learning['reward']:g}{interval}"


def _remarks(rows: Sequence[Found]) -> Iterator[str]:
    """What the columns cannot say."""
    for row in rows:
        details = row["details"] or {}
        name = row["peer_name"] or "Stoker"
        for remark in details.get("remarks") or ():
            yield f"- {name}: {remark}."
        if details.get("steps_per_s") and details.get("failed"):
            yield f"- {name} did not last: {details['failed']}."
        for failure in (details.get("learning") or {}).get("failed") or ():
            yield f"- {name} did not learn to the end: {failure}."
    learning = [(row["details"] or {}).get("learning") or {} for row in rows]
    reasons = [one.get("not_asked") or one.get("why_no_goal") for one in learning]
    yield from (f"- Not asked: {reason}." for reason in dict.fromkeys(reasons) if reason)


def _targets(results: Results) -> Iterator[str]:
    yield "Figures are of one H200 with 16 cores, where nothing else is said."
    yield ""
    rows = [_target(target, results) for target in TARGETS]
    yield from _table(("what", "to be reached", "measured", ""), rows)


def _target(target: Target, results: Results) -> list[str]:
    rows = results.get(target.file, {}).get("rows", ())
    row = next((row for row in rows if _shows(target, row)), None)
    value = target.figure(row) if row else None
    verdict = "not measured" if value is None else "reached"
    if value is not None and value < target.at_least:
        verdict = "**not reached**"
    measured = _UNKNOWN if value is None else number(value)
    return [target.what, f"{number(target.at_least)} {target.unit}", measured, verdict]


def _shows(target: Target, row: Found) -> bool:
    peer = row["peer_name"] or ""
    return row["case"].startswith(target.case) and peer.startswith(target.peer)


def _measurements(results: Results) -> Iterator[str]:
    yield (
        "`ours is` is how much better ours is than what stands beside it: larger is better, "
        "whatever the unit. Of a prediction (`predict`) it is what was predicted over what was "
        "measured, and 1 is best."
    )
    for name, found in results.items():
        yield from ("", f"## {name}", "", f"On {_machine(found)}.{_note(found)}", "")
        head = ("case", "Stoker", "unit", "beside it", "", "ours is", "ceiling", "measured")
        yield from _table(head, [_measurement(row) for row in found["rows"]])


def _measurement(row: Found) -> list[str]:
    when = f"{row.get('date') or ''} {(row.get('commit') or '')[:7]}".strip()
    return [
        row["case"],
        _maybe(row["ours"]),
        row["unit"],
        _maybe(row["peer"]),
        row["peer_name"] or "",
        f"{row['ratio']:g} x" if row["ratio"] is not None else "",
        _maybe(row["ceiling"]),
        when,
    ]


def _maybe(value: float | None) -> str:
    return "" if value is None else number(value)


def number(value: float) -> str:
    """With three digits or all whole ones, as 68.0 M or 12,609 or 0.874."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M" if abs(value) < 1e9 else f"{value / 1e6:,.0f} M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
