"""What came of a sweep: who is best, with what settings, and how to train with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.config.load import base_config
from stoker.config.settings_yaml import dump_settings
from stoker.runs.strict_json import write_atomically
from stoker.sweep.ledger import Ledger, Row
from stoker.sweep.plan import Plan, settings_for

BEST_NAME = "best.yaml"
_SIZES = ("n_envs", "n_steps", "batch_size", "n_epochs", "network_arch", "buffer_size")
"""Always written: what they are by default depends on the device."""
_OF_A_RUN = ("run_name", "runs_dir", "seed", "eval_episodes", "eval_every", "require_reward")


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The completed trials, best first."""
    complete = [row for row in rows if row.state == "complete" and row.value is not None]
    return sorted(complete, key=lambda row: -(row.value or 0.0))


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Trials by state."""
    found = Counter(row.state for row in rows)
    return {name: found[name] for name in ("complete", "pruned", "running", "waiting", "failed")}


def best_settings(plan: Plan, best: Row, on_gpu: bool) -> dict[str, Any]:
    """What `stoker train --config` needs to train as the best trial did, and as long."""
    flat = settings_for(plan.base, best.drawn)
    usual = base_config(None, on_gpu, flat["algo"]).flat()
    searched = {*plan.space, *_SIZES, "env", "algo", "timesteps"}
    chosen = {
        name: value
        for name, value in flat.items()
        if name not in _OF_A_RUN and (name in searched or value != usual[name])
    }
    if plan.budget_s is not None and best.env_steps:
        chosen["timesteps"] = best.env_steps
    return chosen


def write_best(folder: Path, name: str, plan: Plan, best: Row, on_gpu: bool) -> Path:
    """The best settings as a file for `stoker train --config`; where."""
    seeds = ", ".join(f"{reward:.1f} with seed {seed}" for seed, reward in best.seeds.items())
    header = f"# The best of the sweep {name}: trial {best.number}, reward {best.value:.1f}"
    place = folder / BEST_NAME
    settings = dump_settings(best_settings(plan, best, on_gpu))
    write_atomically(place, f"{header} ({seeds}).\n{settings}")
    return place


def summary(name: str, ledger: Ledger, folder: Path) -> dict[str, Any]:
    """All of it, as for JSON."""
    rows, plan = ledger.rows(), ledger.plan
    best = next(iter(ranked(rows)), None)
    done = counts(rows)["complete"] + counts(rows)["pruned"]
    return {
        "name": name,
        "env": plan.base["env"],
        "state": "finished" if done >= plan.trials else "unfinished",
        "trials": plan.trials,
        "done": done,
        **counts(rows),
        "seeds": list(plan.seeds),
        "unseen_seed": plan.seeds[0] + max(plan.agents, len(plan.seeds)),
        "budget_s": plan.budget_s,
        "timesteps": None if plan.budget_s is not None else plan.base["timesteps"],
        "best": None if best is None else best._asdict(),
        "importances": ledger.importances(),
        "best_file": str(folder / BEST_NAME) if best is not None else None,
        "rows": [row._asdict() for row in rows],
    }
