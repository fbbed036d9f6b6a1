"""Stoker, through what `stoker train` calls, in the same kind of process as its peers.

It normalises observations and rewards, as it does by default; the peers are not asked to.
"""

from __future__ import annotations

from typing import Any

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import wait
from stoker.train import loop
from stoker.train.build import build
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
            "batch_size": task.batch // 4,
            "n_epochs": 4,
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


def train_round(session: Session) -> None:
    """As many iterations as there are between two log lines."""
    loop.run(session, lambda _: False, StopRequest(None))
    wait()


def train(task: Task, stretches: Stretches) -> None:
    tensors = task.env.startswith("tensor/")
    session = open_session(task, **{} if tensors else {"pool": "process", "collect": "overlap"})
    chosen = session.parts.decisions
    stretches.told["decisions"] = {each.what: each.chosen for each in chosen}
    try:
        stretches.run(lambda: train_round(session))
    finally:
        session.parts.close()


if __name__ == "__main__":
    main(train, "torch")
