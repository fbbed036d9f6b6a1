"""A finished run, looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stoker.errors import RunError
from stoker.runs import checkpoint as checkpoints
from stoker.runs.checkpoint import Checkpoint
from stoker.runs.folder import RunFolder
from stoker.train.agent import Agent
from stoker.train.evaluate import EvalReport, evaluate
from stoker.train.sources import factory_of


class Evaluated(NamedTuple):
    """Who was evaluated, and how it did."""

    checkpoint: str
    agent: int | None
    """Its number in a population."""
    report: EvalReport


def evaluate_run(
    path: Path,
    *,
    episodes: int,
    checkpoint: str = "newest",
    agent: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    deterministic: bool = True,
) -> Evaluated:
    """Evaluate a checkpoint of the run at `path`; of a population, the best agent or `agent`."""
    folder = RunFolder.open(path)
    name, saved = _find(folder, checkpoint)
    model = Agent.from_checkpoint(saved, device=device, agent=agent)
    report = evaluate(
        model.policy,
        factory_of(model.config),
        model.spec,
        model.device,
        episodes=episodes,
        # Not the seeds of training's own evaluations: the best was chosen by those.
        seed=model.config.run.seed + 1 if seed is None else seed,
        max_steps=model.config.run.eval_max_steps,
        deterministic=deterministic,
        pool=model.config.env.pool,
    )
    best: int | None = saved.state.get("best_agent")
    return Evaluated(name, best if agent is None else agent, report)


def _find(folder: RunFolder, wanted: str) -> tuple[str, Checkpoint]:
    if wanted == "newest":
        path, saved = checkpoints.load_newest(folder.checkpoints)
        return path.name, saved
    if wanted == "best":
        _, newest = checkpoints.load_newest(folder.checkpoints)
        step = newest.state["counters"]["best_step"]
        if step is None:
            raise RunError(f"The run {folder.name} knows no best checkpoint yet.")
        wanted = checkpoints.step_name(step)
    known = {path.name: path for _, path in checkpoints.list_steps(folder.checkpoints)}
    if wanted not in known:
        raise RunError(
            f"The run {folder.name} has no checkpoint {wanted!r}; it has {', '.join(known)}."
        )
    return wanted, checkpoints.load(known[wanted])
