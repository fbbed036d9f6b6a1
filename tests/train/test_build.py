"""Building: what is chosen, what is said about it, and what is refused."""

from __future__ import annotations

import multiprocessing
import re
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import tasks
import torch

from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError, EnvError
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.train import devices
from stoker.train.build import build
from stoker.train.by_hand import PolicyByHand
from stoker.train.parts import Parts
from stoker.train.sizes import check_fit, memory_need


def parts_of(env: Any = None, **settings: Any) -> Parts:
    return build(resolve({"env": "tasks:Count", "device": "cpu", **settings}), env)


def test_every_choice_is_told_with_its_reason() -> None:
    parts = parts_of()
    parts.close()
    told = {decision.what: decision for decision in parts.decisions}
    names = ["pool", "device", "batch", "network", "precision", "collect", "storage", "memory"]
    assert list(told) == names
    assert told["pool"].chosen == "inline"
    assert "a step takes" in told["pool"].why
    assert "1 x 256 steps = 256, in minibatches of 64" in told["batch"].chosen
    assert told["precision"].chosen == "fp32"
    assert told["collect"] == ("collect", "in step", "environments step in this process")
    assert told["storage"].why == "one rollout"
    assert re.fullmatch(
        r"rollout .* MiB, network .* MiB, minibatch .* MiB; .* are free", told["memory"].why
    )


@pytest.mark.parametrize(
    ("pool", "collect", "chosen", "ahead", "tried"),
    [
        ("inline", "step", "in step", False, False),
        ("inline", "auto", "in step", False, False),
        ("inline", "overlap", "overlapped", True, False),
        ("process", "step", "in step", False, False),
        ("process", "auto", "in step at first", False, True),
        ("process", "overlap", "overlapped", True, False),
    ],
)
def test_how_rollouts_are_collected_follows_from_the_setting_and_the_pool(
    pool: str, collect: str, chosen: str, ahead: bool, tried: bool
) -> None:
    parts = parts_of(pool=pool, collect=collect, n_envs=2, n_workers=1)
    parts.close()
    told = {decision.what: decision for decision in parts.decisions}
    assert told["collect"].chosen == chosen
    assert ("asked for" in told["collect"].why) == (collect != "auto")
    assert parts.collector.ahead == ahead
    assert (parts.trial is not None) == tried
    twice = ahead or tried
    assert told["storage"].why == ("two rollouts" if twice else "one rollout")
    acts = parts.collector.gatherer.policy
    assert isinstance(acts, PolicyByHand)
    assert (acts.policy is parts.policy) == (not twice)


def test_rollouts_are_judged_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """In step their values; where they may be late, what was done as well."""
    judged = list[str]()
    for name in ("value", "appraise"):
        before = getattr(PolicyByHand, name)

        def noted(*given: Any, name: str = name, before: Any = before) -> Any:
            judged.append(name)
            return before(*given)

        monkeypatch.setattr(PolicyByHand, name, noted)
    parts = parts_of(n_envs=2)
    try:
        storage = parts.collector.collect(last=True)
        parts.lesson(storage)
        assert judged[0] == "value"
        storage.version -= 1
        parts.lesson(storage)
        assert "appraise" in judged
    finally:
        parts.close()


def test_a_preset_for_more_cores_names_the_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 4)
    config = resolve({"env": "tasks:Count", "device": "cpu"}, preset="beast")
    with pytest.warns(UserWarning, match="beast. is made for 16 cores .* --preset fast fits"):
        build(config).close()


def test_more_memory_than_there_is_is_refused_with_the_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda device: 2**20)
    with pytest.raises(ConfigError, match=r"needs about 13.* MiB on the cpu .* 1.0 MiB .*--preset"):
        parts_of(n_steps=100_000, batch_size=100)


def test_a_gpus_minibatch_may_be_too_large_since_it_can_be_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = parts_of()
    parts.close()
    monkeypatch.setattr(devices, "free_memory", lambda device: 30 * 2**20)  # activations take 32
    for micro_batch, device, refused in ((0, "cpu", True), (0, "cuda", False), (64, "cpu", False)):
        settings = {"n_steps": 8192, "batch_size": 8192, "network_arch": "256"}
        config = resolve({**settings, "device": "cpu", "micro_batch": micro_batch})
        with pytest.raises(ConfigError) if refused else nullcontext():
            check_fit(config, parts.pool.spec, torch.device(device), elsewhere=False)


def test_a_population_takes_the_memory_of_all_its_agents() -> None:
    parts = parts_of()
    parts.close()
    one, ten = (
        memory_need(resolve({"device": "cpu", "population": agents}), parts.pool.spec, parts.device)
        for agents in (1, 10)
    )
    assert ten.total == pytest.approx(10 * one.total, rel=0.01)


def test_memory_that_only_just_suffices_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda device: 950_000)
    with pytest.warns(UserWarning, match="would fit well"):
        parts_of().close()


def test_slow_environments_go_to_processes_and_one_can_ask_for_them() -> None:
    parts = parts_of(pool="process", n_envs=3, n_workers=2)
    assert isinstance(parts.pool, ProcessPool)
    parts.close()
    assert "asked for" in parts.decisions[0].why


def test_a_ctrl_c_while_collecting_ends_spares_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    parts = parts_of(pool="process", n_envs=2, n_workers=2, collect="overlap")
    end = parts.collector.close
    monkeypatch.setattr(parts.collector, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parts.close()
    assert not multiprocessing.active_children()
    end()


def test_where_processes_cannot_start_the_pool_is_inline_and_says_why() -> None:
    lock = threading.Lock()  # cannot be sent to another process

    def make() -> tasks.Count:
        with lock:
            return tasks.Count()

    with pytest.warns(UserWarning, match="inline instead: The environment cannot be sent.*lock"):
        parts = parts_of(EnvFactory(make), pool="process", n_envs=2)
    assert isinstance(parts.pool, InlinePool)
    assert parts.decisions[0].why == "worker processes could not start"
    parts.close()


def test_an_environment_that_fails_in_a_worker_is_an_error_not_a_fallback() -> None:
    with pytest.raises(EnvError, match="no licence on this process"):
        parts_of(EnvFactory(tasks.BreaksInWorkers), pool="process", n_envs=2)


def test_cuda_where_there_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no GPU"):
        parts_of(device="cuda")
