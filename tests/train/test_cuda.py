"""On a GPU: settings, storage on the device, and no synchronisation but the labelled ones."""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.config import resolve
from stoker.train.build import Parts, build
from stoker.train.loop import run
from stoker.train.session import Session
from stoker.train.signals import StopRequest

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
_HOUSE = str(Path(stoker.__file__).parent)
_TASKS = ["CartPole-v1", "Pendulum-v1", "tasks:MatchPair", "tasks:EchoDict", "tasks:Masked"]


def parts_for(env: str, **settings: Any) -> Parts:
    small = {"n_envs": 4, "n_steps": 64, "batch_size": 64, "n_epochs": 2, "timesteps": 1024}
    config = resolve({"env": env, "device": "cuda", **small, **settings}, on_gpu=True)
    return build(config)


def test_tf32_is_on_and_all_state_lies_on_the_gpu() -> None:
    parts = parts_for("tasks:EchoDict")
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    rollout = parts.collector.collect(version=0)
    fields = [*rollout.obs.values(), *(x for x in rollout if isinstance(x, torch.Tensor))]
    assert all(field.is_cuda for field in fields)
    assert all(value.is_cuda for value in parts.policy.state_dict().values())
    parts.close()


def test_full_precision_can_be_had() -> None:
    parts = parts_for("CartPole-v1", precision="fp32")
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    parts.close()


@pytest.mark.parametrize("env", _TASKS)
def test_the_update_never_waits_for_the_gpu(env: str) -> None:
    parts = parts_for(env, target_kl=None)
    parts.learner.learn(parts.collector.collect(version=0), version=0)  # first call: allocations
    rollout = parts.collector.collect(version=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        report = parts.learner.learn(rollout, version=1)
        parts.policy.update_moments(rollout.obs, rollout.valid)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert report.metrics["train/n_updates"].item() == 8
    parts.close()


@pytest.mark.parametrize("env", _TASKS)
def test_every_synchronisation_of_an_iteration_carries_its_label(env: str) -> None:
    parts = parts_for(env, target_kl=0.5)
    session = Session(parts, None)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(session, lambda _: None, StopRequest(1.0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places = {
        (warning.filename, warning.lineno)
        for warning in caught
        if "synchronizing CUDA" in str(warning.message)
    }
    assert places, "the mode reports nothing: it does not work here"
    for name, number in places:
        assert name.startswith(_HOUSE), (name, number)
        assert "# sync:" in linecache.getline(name, number), (name, number)
    parts.close()


def test_a_compiled_update_matches_the_eager_one() -> None:
    ended = []
    for executor in ("eager", "compile"):
        parts = parts_for("CartPole-v1", executor=executor, compile_in="foreground")
        for version in range(2):
            parts.learner.learn(parts.collector.collect(version), version)
        ended.append(torch.cat([p.detach().flatten() for p in parts.policy.parameters()]))
        parts.close()
    assert torch.allclose(*ended, atol=2e-3)


def test_the_same_seed_gives_the_same_weights() -> None:
    ended = []
    for _ in range(2):
        parts = parts_for("CartPole-v1")
        for version in range(3):
            parts.learner.learn(parts.collector.collect(version), version)
        ended.append([p.detach().clone() for p in parts.policy.parameters()])
        parts.close()
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))
