"""Populations held against the memory: the largest that fits is named, and fits."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tensor_envs import Ladder

from stoker.config import resolve
from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError
from stoker.kernels import mlp
from stoker.pools.tensor import describe_tensor_env
from stoker.train import devices, on_device
from stoker.train.build import build
from stoker.train.crowding import Yardstick, check_crowd
from stoker.train.parts import Parts

CPU = torch.device("cpu")
SPEC = describe_tensor_env("Ladder", Ladder())
SIZES = {"n_envs": 8, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "network_arch": (32, 32)}


def config_of(population: int, **settings: Any) -> Config:
    given = {"env": "test", "device": "cpu", **SIZES, "population": population, **settings}
    return resolve(given, on_gpu=False)


def parts_of(population: int) -> Parts:
    return build(config_of(population), EnvFactory(Ladder))


def yardstick_of(config: Config) -> Yardstick:
    return Yardstick.of(Ladder(), config, SPEC, CPU)


def leave_free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda device: size)


def test_the_largest_population_that_fits_is_named_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_free(monkeypatch, yardstick_of(config_of(5)).need(5).total)
    parts_of(5).close()

    def make(*given: Any, **more: Any) -> None:
        raise AssertionError("environments were made")

    monkeypatch.setattr(on_device, "TensorPool", make)
    for population in (6, 4000):
        with pytest.raises(ConfigError, match=f"population is {population}, which needs") as found:
            parts_of(population)
        assert "the largest that fits is 5. Use --population 5, or use smaller" in str(found.value)
        assert found.value.exit_code == 2


def test_not_even_one(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, yardstick_of(config_of(2)).need(1).total - 1)
    with pytest.raises(ConfigError, match="GiB are free: not one fits; use smaller sizes"):
        check_crowd(Ladder(), config_of(2), SPEC, CPU)


def test_one_agent_alone_is_not_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 0)
    check_crowd(Ladder(), config_of(1), SPEC, CPU)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.55, 0.9, 0.999])
@pytest.mark.parametrize("population", [40, 66, 67, 300])
def test_no_larger_one_would_fit(
    share: float, population: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a few agents have more parts of a gradient each, as on a GPU."""
    monkeypatch.setattr(mlp, "parts", lambda agents, batch, device: max(1, 132 // agents))
    config = config_of(population, network_arch=(128, 128))
    yardstick = yardstick_of(config)
    free = int(share * yardstick.need(population).total)
    leave_free(monkeypatch, free)
    with pytest.raises(ConfigError) as found:
        check_crowd(Ladder(), config, SPEC, CPU)
    named = re.search(r"largest that fits is (\d+)", str(found.value))
    fitting = [k for k in range(1, population) if yardstick.need(k).total <= free]
    assert (int(named[1]) if named else 0) == max(fitting, default=0)


def test_what_is_held_of_a_population_is_counted() -> None:
    """What there is at once while a lesson runs is more; what is kept is a floor."""
    parts = parts_of(6)
    fused = parts.fused
    assert fused is not None
    learner, storage = fused.learner, parts.collector.storage  # type: ignore[union-attr]
    rows = [*storage._rollout.obs.values(), *storage.final_obs.values(), *storage.metrics.values()]
    kept = storage._rollout
    rows += [kept.action, kept.reward, kept.behaviour_log_prob, kept.value, learner._values]
    need = yardstick_of(parts.config).need(6)
    assert size_of(rows) < need.rollouts < 20 * size_of(rows)
    optimised = learner.optimised
    assert size_of([optimised.flat, optimised.mean, optimised.square]) < need.networks
    assert size_of([learner._parts]) < need.gradients
    parts.close()


def size_of(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("setting", "grows"),
    [
        ({"n_envs": 16}, "rollouts"),
        ({"n_steps": 32}, "rollouts"),
        ({"network_arch": (64, 64)}, "networks"),
        ({"batch_size": 64}, "gradients"),
    ],
)
def test_larger_sizes_take_more(setting: dict[str, Any], grows: str) -> None:
    less, more = (yardstick_of(config_of(2, **one)).need(2) for one in ({}, setting))
    assert getattr(more, grows) > getattr(less, grows)
