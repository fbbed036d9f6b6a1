"""The verdict on real runs, each built to be bound by one thing."""

from __future__ import annotations

from typing import Any

import pytest
import tasks

from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.monitor.verdict import Verdict
from stoker.train import loop
from stoker.train.build import build
from stoker.train.judging import verdict_on
from stoker.train.session import Session
from stoker.train.signals import StopRequest

pytestmark = pytest.mark.alone


def judged(cost: float = 0.0, iterations: int = 4, **settings: Any) -> Verdict:
    given = {"env": "costly", "n_envs": 4, "n_steps": 64, "batch_size": 256, "n_epochs": 1}
    given |= {"network_arch": (16,), "device": "cpu", "eval_episodes": 0, "pool": "inline"}
    given |= {"collect": "step", "log_every": 100, **settings}
    steps = iterations * given["n_envs"] * given["n_steps"]
    config = resolve({**given, "timesteps": steps}, on_gpu=False)
    parts = build(config, EnvFactory(tasks.Costly, {"cost": cost}))
    try:
        session = Session(parts, None)
        session.start_clocks()
        loop.run(session, lambda _: None, StopRequest(None))
        verdict = verdict_on(parts, session.counters.env_steps)
    finally:
        parts.close()
    assert verdict is not None
    assert sum(verdict.shares.values()) == pytest.approx(1.0, abs=0.01)
    return verdict


def largest(verdict: Verdict) -> str:
    return max(verdict.shares, key=lambda name: verdict.shares[name])


@pytest.mark.parametrize("pool", ["inline", "process"])
def test_bound_by_environments(pool: str) -> None:
    workers = 2 if pool == "process" else 0
    verdict = judged(cost=5e-3, iterations=2, pool=pool, n_workers=workers)
    assert largest(verdict) == "environments"
    assert verdict.limit == "environments"
    assert verdict.ceilings["environments"] == pytest.approx(max(1, workers) / 5e-3, rel=0.3)


def test_bound_by_hand_over() -> None:
    verdict = judged(pool="process", n_workers=16, n_envs=16)
    assert largest(verdict) == "hand-over"


def test_bound_by_inference() -> None:
    verdict = judged(iterations=12, network_arch=(128, 128), n_envs=1, n_steps=256)
    assert largest(verdict) == "inference"


def test_bound_by_updates() -> None:
    verdict = judged(n_epochs=40, batch_size=32)
    assert largest(verdict) == "learning"
    assert verdict.limit == "learning"


def test_before_the_first_step_there_is_none() -> None:
    parts = build(
        resolve({"env": "costly", "n_envs": 1, "device": "cpu"}, on_gpu=False),
        EnvFactory(tasks.Costly),
    )
    assert verdict_on(parts, 0) is None
    parts.close()
