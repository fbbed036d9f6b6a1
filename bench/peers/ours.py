"""Stoker, through what `stoker train` calls, in the same kind of process as its peers.

It normalises observations and rewards, as it does by default; the peers are not asked to.
"""

from __future__ import annotations

from typing import Any

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import wait
from bench.waiting import AWAITING
from stoker.train import loop
from stoker.train.build import build
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.tuned import resolve_here

_FOR_EVER = 10**15


def open_session(task: Task, **settings: Any) -> Session:
    """A run that has not begun, kept nowhere; it is to be closed by closing its parts."""
    several: dict[str, Any] = {"population": task.agents} if task.agents > 1 else {}
    config = resolve_here(
        {
            "env": task.env,
            "n_envs": task.envs,
            "n_steps": task.steps,
            "batch_size": task.minibatch,
            "n_epochs": task.epochs,
            "learning_rate": task.lr,
            "seed": task.seed,
            "target_kl": None,  # as that would make fewer updates than the peers make
            "network_arch": task.arch,
            "precision": task.precision,
            "executor": task.executor,
            "compile_in": "foreground",
            "timesteps": _FOR_EVER,
            "log_every": task.iterations,
            "eval_episodes": 0,
            **several,
            **settings,
        }
    )
    return Session(build(config), None)


def train_round(session: Session) -> Progress:
    """As many iterations as there are between two log lines; what the line says."""
    lines: list[Progress] = []

    def stop(progress: Progress) -> bool:
        lines.append(progress)
        return False

    loop.run(session, stop, StopRequest(None))
    wait()
    return lines[-1]


def _for(task: Task) -> dict[str, Any]:
    """What a run that is to be quick would be told besides its sizes."""
    # Who learns does not wait for what is built meanwhile; who is timed does, before.
    built = {"compile_in": "background"} if task.learn_steps else {}
    if task.env.startswith("tensor/"):
        return built
    if task.learn_steps:  # beside others who learn, each on a core
        return {**built, "pool": "inline", "collect": "step"}
    if task.env == AWAITING:
        return {**built, "pool": "io", "in_flight": task.envs}
    return {**built, "pool": "process", "collect": "overlap"}


def train(task: Task, stretches: Stretches) -> None:
    session = open_session(task, **_for(task))
    chosen = session.parts.decisions
    stretches.told["decisions"] = {each.what: each.chosen for each in chosen}
    reward: float | None = None

    def once() -> None:
        nonlocal reward
        reward = train_round(session).metrics.get("rollout/ep_rew_mean")

    stretches.reward = lambda: reward
    try:
        stretches.run(once)
    finally:
        session.parts.close()


if __name__ == "__main__":
    main(train, "torch")
