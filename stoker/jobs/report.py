"""What came of a pack: each job, and whether packing paid."""

from __future__ import annotations

from typing import Any, NamedTuple

from stoker.jobs.chip import told
from stoker.jobs.entry import Entry
from stoker.jobs.pack import Packer
from stoker.jobs.track import together

_PAYS = 1.05
"""Times the steps a second of one job alone: less may be chance."""


class Report(NamedTuple):
    """What came of a pack; None is unknown."""

    state: str
    """`finished` if every job is, else `stopped` if one was, else `failed`."""
    total_sps: float | None
    """Steps a second of all jobs, while as many trained as may at once."""
    alone_sps: float | None
    """Of one job alone, on all cores."""
    verdict: str
    fields: dict[str, Any]
    """All of it, as for JSON."""


def report_on(packer: Packer, wall_s: float) -> Report:
    """The report on a pack that has ended."""
    premises, admission = packer.premises, packer.premises.admission
    entries, alone = packer.entries, premises.alone.sps
    since, until = packer.full_since, packer.full_until
    total = together([entry.track for entry in entries], since, until)
    gpu = told(premises.chip.means(since, until)) if total is not None else {}
    state = _state(entries)
    at_once = None if admission is None else admission.at_once
    verdict = judge(total, alone, at_once)
    fields = {
        "state": state,
        "pack": str(packer.folder),
        "jobs": [_row(entry) for entry in entries],
        "at_once": at_once,
        "admission": [] if admission is None else list(admission.reasons),
        "mps": {"on": premises.mps.why_not is None, "why_not": premises.mps.why_not},
        "total_sps": total,
        "measured_s": None if total is None or not since or not until else until - since,
        "alone_sps": alone,
        "ratio": None if total is None or not alone else total / alone,
        "gpu": gpu or None,
        "alone_gpu": told(premises.alone.gpu) or None,
        "verdict": verdict,
        "wall_s": wall_s,
    }
    return Report(state, total, alone, verdict, fields)


def _state(entries: list[Entry]) -> str:
    states = {entry.state for entry in entries}
    if states == {"finished"}:
        return "finished"
    return "stopped" if "stopped" in states else "failed"


def _row(entry: Entry) -> dict[str, Any]:
    status = {} if entry.seen is None else entry.seen.status
    return {
        "name": entry.job.name,
        "run": str(entry.job.path),
        "state": entry.state,
        "why": entry.why,
        "exit_code": entry.code,
        "restarts": entry.restarts,
        "env_steps": status.get("env_steps"),
        "sps": status.get("sps"),
        "reward": status.get("eval/mean_reward", status.get("rollout/ep_rew_mean")),
        "cores": list(entry.cores),
        "log": str(entry.log),
    }


def judge(total: float | None, alone: float | None, at_once: int | None) -> str:
    """Whether packing paid, in a sentence."""
    if total is None:
        return (
            "How many steps a second the jobs made together is unknown: too few trained at once "
            "for too short a time."
        )
    together_ = f"{at_once} at once made {total:,.0f} steps/s"
    if alone is None:
        return f"{together_}; what one makes alone is unknown, so whether that pays is, too."
    ratio = total / alone
    found = f"{together_}, one alone on all cores {alone:,.0f}: {ratio:.2f} times as many"
    if ratio >= _PAYS:
        return f"{found}."
    return f"{found}. Packing does not pay here: one after the other they are done as soon."
