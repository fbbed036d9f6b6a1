"""On a GPU: settings, storage on the device, and no synchronisation but the labelled ones."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import stoker
from stoker.collect import acting, gather
from stoker.collect.overlapped import OverlappedCollector
from stoker.config import resolve
from stoker.storage.staged import StagedStorage
from stoker.train.build import build
from stoker.train.loop import run
from stoker.train.parts import Parts
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.types import LearnReport, Rollout

pytestmark = pytest.mark.gpu
_HOUSE = str(Path(stoker.__file__).parent)
_TASKS = ["CartPole-v1", "Pendulum-v1", "tasks:MatchPair", "tasks:EchoDict", "tasks:Masked"]


def parts_for(env: str, **settings: Any) -> Parts:
    small = {"n_envs": 4, "n_steps": 64, "batch_size": 64, "n_epochs": 2, "timesteps": 1024}
    config = resolve({"env": env, "device": "cuda", **small, **settings}, on_gpu=True)
    return build(config)


def collected(parts: Parts) -> Rollout:
    return parts.collector.collect().judged_by(parts.policy, parts.collector.version)


def learn(parts: Parts) -> LearnReport:
    """An iteration, as the loop does it."""
    report = parts.learner.learn(collected(parts), parts.collector.version)
    parts.collector.publish()
    return report


def test_tf32_is_on_and_all_state_lies_on_the_gpu() -> None:
    parts = parts_for("tasks:EchoDict")
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    rollout = collected(parts)
    fields = [*rollout.obs.values(), *(x for x in rollout if isinstance(x, torch.Tensor))]
    assert all(field.is_cuda for field in fields)
    assert all(value.is_cuda for value in parts.policy.state_dict().values())
    parts.close()


def test_full_precision_can_be_had() -> None:
    parts = parts_for("CartPole-v1", precision="fp32")
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    parts.close()


@pytest.mark.parametrize("executor", ["eager", "graph"])
@pytest.mark.parametrize("env", _TASKS)
def test_the_update_never_waits_for_the_gpu(env: str, executor: str) -> None:
    parts = parts_for(env, target_kl=None, executor=executor)
    learn(parts)  # first call: allocations
    rollout = collected(parts)
    torch.cuda.set_sync_debug_mode("error")
    try:
        report = parts.learner.learn(rollout, parts.collector.version)
        parts.policy.update_moments(rollout.obs, rollout.valid)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert report.metrics["train/n_updates"].item() == 8
    parts.close()


@pytest.mark.parametrize("collect", ["step", "overlap"])
@pytest.mark.parametrize("env", _TASKS)
def test_every_synchronisation_of_an_iteration_carries_its_label(env: str, collect: str) -> None:
    parts = parts_for(env, target_kl=0.5, collect=collect, timesteps=512)
    for _ in range(2):  # captures, of acting into either storage and of the update, synchronise
        learn(parts)
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
        if name == torch.cuda.streams.__file__:  # an explicit one: see tests/test_layers.py
            continue
        assert name.startswith(_HOUSE), (name, number)
        assert "# sync:" in linecache.getline(name, number), (name, number)
    parts.close()


@pytest.mark.parametrize("other", ["compile", "graph"])
def test_an_update_comes_to_the_same_however_it_runs(other: str) -> None:
    ended = []
    for executor in ("eager", other):
        parts = parts_for("CartPole-v1", executor=executor, compile_in="foreground")
        for _ in range(2):
            learn(parts)
        ended.append(torch.cat([p.detach().flatten() for p in parts.policy.parameters()]))
        parts.close()
    assert torch.allclose(*ended, atol=2e-3)


_ONE_MINIBATCH = {
    "n_envs": 64,
    "n_steps": 256,
    "batch_size": 64 * 256,
    "network_arch": (2048, 2048),  # half a GiB of activations
    "target_kl": None,
    "precision": "fp32",
    "kernels": "torch",
    "collect": "step",
    "pool": "auto",
}


@contextmanager
def little_memory(mebibytes: int = 400) -> Iterator[None]:
    """No more than so much beyond what is held now."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + mebibytes * 2**20
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def weights(parts: Parts) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in parts.policy.parameters()])


@pytest.mark.parametrize("executor", ["eager", "graph"])
def test_memory_that_runs_out_is_survived_and_comes_to_the_same(executor: str) -> None:
    """With five updates, the fourth of which is the one that is captured."""
    settings = {**_ONE_MINIBATCH, "executor": executor, "n_epochs": 5}
    parts = parts_for("CartPole-v1", **settings)
    report = learn(parts)
    expected = weights(parts)
    parts.close()
    parts = parts_for("CartPole-v1", **settings)
    rollout = collected(parts)
    with little_memory(), pytest.warns(UserWarning, match="Memory ran out in an update"):
        short = parts.learner.learn(rollout, parts.collector.version)
    assert parts.learner.micro_batch < parts.config.minibatch
    assert short.metrics["train/n_updates"].item() == 5
    for name in ("train/loss", "train/approx_kl", "train/grad_norm"):
        torch.testing.assert_close(short.metrics[name], report.metrics[name], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(weights(parts), expected, rtol=0, atol=2e-3)
    parts.close()


def test_memory_that_runs_out_in_a_capture_is_survived() -> None:
    """After three updates, which warm up: the next one is captured."""
    parts = parts_for("CartPole-v1", **_ONE_MINIBATCH, executor="graph", n_epochs=3)
    learn(parts)
    assert parts.learner.micro_batch == parts.config.minibatch
    rollout = collected(parts)
    with little_memory(), pytest.warns(UserWarning, match="Memory ran out in an update"):
        report = parts.learner.learn(rollout, parts.collector.version)
    assert parts.learner.micro_batch < parts.config.minibatch
    assert report.metrics["train/n_updates"].item() == 3
    assert torch.isfinite(weights(parts)).all()
    parts.close()


def test_memory_that_runs_out_in_the_capture_of_a_lesson_is_survived() -> None:
    """The first lesson warms up, the second is captured, the third is the capture's."""
    parts = parts_for("tensor/CartPole-v1", **_ONE_MINIBATCH, executor="graph", n_epochs=3)
    parts.lesson(parts.collector.collect())
    rollout = parts.collector.collect()
    with little_memory(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts.lesson(rollout)
    said = [str(warning.message) for warning in caught]
    assert any("Memory ran out" in one for one in said)
    assert not any("could not be captured" in one for one in said)
    before = weights(parts)
    report = parts.lesson(rollout)
    assert report.metrics["train/n_updates"].item() == 3
    assert torch.isfinite(weights(parts)).all()
    assert not torch.equal(weights(parts), before)
    parts.close()


def test_the_same_seed_gives_the_same_weights() -> None:
    ended = []
    for _ in range(2):
        parts = parts_for("CartPole-v1", collect="step")
        for _ in range(3):
            learn(parts)
        ended.append([p.detach().clone() for p in parts.policy.parameters()])
        parts.close()
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))


@pytest.mark.parametrize("env", _TASKS)
def test_captured_acting_decides_and_stores_as_eager_acting_does(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = []
    for kind in (acting.CapturedActing, acting.Acting):
        monkeypatch.setattr(gather, "CapturedActing", kind)
        parts = parts_for(env, precision="fp32", collect="step")
        first = pytree.tree_map_only(torch.Tensor, torch.clone, collected(parts))
        rollouts.append((first, pytree.tree_map_only(torch.Tensor, torch.clone, collected(parts))))
        parts.close()
    for captured, eager in zip(*rollouts, strict=True):
        if env == "Pendulum-v1":  # whose swings amplify the last bit of an action: its beginning
            captured, eager = (r._replace(last_value=None) for r in (captured, eager))
            captured, eager = (
                pytree.tree_map_only(torch.Tensor, lambda field: field[:4], r)
                for r in (captured, eager)
            )
        leaves = zip(pytree.tree_leaves(captured), pytree.tree_leaves(eager), strict=True)
        for mine, theirs in leaves:
            if mine is not None:
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        if env == "Pendulum-v1":
            break  # the second rollout begins where the swings of the first led


@pytest.mark.parametrize("env", ["tasks:EchoDict", "tasks:Masked"])
def test_captured_acting_acts_for_any_environments_at_a_step_each(env: str) -> None:
    """As eager acting does; what it decides for the others besides is in no row."""
    places = [([0, 0, 0], [0, 1, 3]), ([1, 0], [3, 2]), ([2], [3]), ([1, 1], [0, 2])]
    found = []
    for kind in (acting.CapturedActing, acting.Acting):
        parts = parts_for(env, precision="fp32")
        gatherer = parts.collector.gatherer
        storage = StagedStorage(gatherer.pool.spec, 3, 4, parts.device)
        own = kind(gatherer.pool, gatherer.policy, parts.device)
        with gatherer.on_its_stream():
            storage.begin(0)
            own.begin(storage)
            for steps, envs in places:
                own.start(storage, np.array(steps), np.array(envs))
                actions = own.finish()
                found.append(torch.from_numpy(actions.copy()))
            rollout = storage.judged_by(gatherer.policy, 0)
            torch.cuda.synchronize()
        found += [rollout.obs[leaf].cpu() for leaf in rollout.obs]
        if rollout.action_mask is not None:
            found.append(rollout.action_mask.cpu())
        found += [rollout.action.cpu(), rollout.behaviour_log_prob.cpu()]
        parts.close()
    half = len(found) // 2
    for mine, theirs in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_overlapped_collection_waits_for_what_was_made_before_it() -> None:
    """Weights, storages and indices are written on the stream of whoever builds."""
    parts = parts_for("CartPole-v1", collect="overlap")
    collector = parts.collector
    assert isinstance(collector, OverlappedCollector)
    collector.close()
    torch.cuda._sleep(2_000_000_000)  # a second, and only then the weights to begin with
    for weight in collector._weights._between:
        weight.fill_(0.5)
    collector._start()
    collector.collect(last=True)
    assert all((weight == 0.5).all() for weight in collector.gatherer.policy.parameters())
    parts.close()


def test_overlapped_training_learns_on_its_own_stream() -> None:
    parts = parts_for("CartPole-v1", collect="overlap", timesteps=4096)
    session = Session(parts, None)
    run(session, lambda _: None, StopRequest(1.0))
    assert session.counters.env_steps == 4096
    assert session.metrics["lag/max"] == 1.0
    assert all(torch.isfinite(p).all() for p in parts.policy.parameters())
    parts.close()
