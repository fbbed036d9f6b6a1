"""Candidates: what may be set otherwise, and what only when it may change learning."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config import resolve
from stoker.pools.choose import Probe
from stoker.tune.space import Candidate, applied, candidates
from stoker.types import ActionSpec, EnvSpec

SPEC = EnvSpec("one", {}, ActionSpec("discrete", (), "int64", (2,), (0,)))
WORKS = Probe(SPEC, 1e-3, 1e-3, False)
WAITS = Probe(SPEC, 0.1, 1e-3, False, rests=1.0)
JOB = resolve({"n_envs": 4, "n_steps": 64, "batch_size": 64, "pool": "process"})
LEARNING = {"n_envs", "n_steps", "batch_size", "precision", "n_epochs", "network_arch"}


def found(env: Probe | None = WORKS, allow: bool = False, **settings: Any) -> list[Candidate]:
    given = {"cores": 4, "on_gpu": False, **settings}
    return candidates(JOB, env, given["cores"], given["on_gpu"], allow)


def test_learning_is_left_as_it_is() -> None:
    plain = found()
    assert all(not LEARNING & one.keys() for one in plain)
    assert all(applied(JOB, one).ppo == JOB.ppo for one in plain)
    where = {(one["pool"], one["n_workers"], one["collect"]) for one in plain}
    assert where == {
        ("inline", 0, "step"),
        *(("process", n, how) for n in (1, 2, 4) for how in ("step", "overlap")),
    }
    assert {one["torch_threads"] for one in plain} == {1, 2, 4}


def test_the_total_batch_is_never_changed() -> None:
    wide = found(allow=True)
    sizes = {(one["n_envs"], one["n_steps"]) for one in wide}
    assert sizes == {(1, 256), (2, 128), (4, 64), (8, 32), (16, 16), (32, 8)}
    assert {one["batch_size"] for one in wide} == {32, 64, 128}
    for one in wide:
        config = applied(JOB, one)
        assert config.total_batch == 256
        assert config.total_batch % config.minibatch == 0
        assert one["n_workers"] <= one["n_envs"]
        assert (config.ppo.n_epochs, config.network) == (JOB.ppo.n_epochs, JOB.network)


def test_of_those_that_wait_as_many_as_are_in_flight() -> None:
    waiting = found(WAITS)
    assert {one["pool"] for one in waiting if one["n_envs"] > 1} == {"io"}
    assert all(one["in_flight"] == one["n_envs"] for one in waiting)
    assert all(one["n_envs"] * one["n_steps"] == 256 for one in waiting)
    assert all("batch_size" not in one for one in waiting)


def test_on_a_gpu_the_learner_needs_no_threads() -> None:
    assert all("torch_threads" not in one for one in found(on_gpu=True))


@pytest.mark.parametrize(("on_gpu", "precisions"), [(True, {"tf32", "bf16"}), (False, {None})])
def test_where_environments_are_tensors_there_is_no_pool_to_choose(
    on_gpu: bool, precisions: set[str | None]
) -> None:
    tensors = found(None, allow=True, on_gpu=on_gpu)
    assert all("pool" not in one and "collect" not in one for one in tensors)
    assert {one.get("precision") for one in tensors} == precisions
