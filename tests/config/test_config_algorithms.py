"""One group of settings an algorithm, and what is said of those that belong to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import resolve
from stoker.config.load import from_flat
from stoker.config.schema import DQNSettings, PPOSettings
from stoker.errors import ConfigError


def problems_of(settings: dict[str, Any], **layers: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(settings, **layers)
    return caught.value.problems


@pytest.mark.parametrize(
    ("on_gpu", "sizes"),
    [(True, (128, 50_000, (256, 256, 256))), (False, (32, 10_000, (128, 128)))],
)
def test_dqn_gets_the_designs_sizes_by_device(on_gpu: bool, sizes: Any) -> None:
    config = resolve({"algo": "dqn"}, on_gpu=on_gpu)
    assert (config.minibatch, config.dqn.buffer_size, config.network.network_arch) == sizes
    assert config.network.activation == "relu"


def test_without_a_name_the_algorithm_is_ppo() -> None:
    """Also of a run that was written before there was another."""
    old = resolve({}).flat()
    del old["algo"]
    assert isinstance(from_flat(old).learning, PPOSettings)


def test_every_setting_comes_back_from_a_file() -> None:
    config = resolve({"algo": "dqn", "per": True, "n_step_return": 3, "buffer_size": "20k"})
    assert from_flat(config.flat()) == config
    assert isinstance(config.learning, DQNSettings)


def test_a_flag_names_another_algorithm_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("algo: dqn\ngamma: 0.9\n")
    assert resolve({}, file=file).learning == resolve({"algo": "dqn", "gamma": 0.9}).learning
    assert resolve({"algo": "ppo"}, file=file).ppo.gamma == 0.9


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algo": "dqn", "n_epochs": 3}, "n_epochs is a setting of ppo, and algo is dqn"),
        ({"per": True}, "per is a setting of dqn, and algo is ppo"),
        ({"algo": "sac"}, "'sac' is none of ppo, dqn"),
        ({"algo": "dqn", "population": 4}, "population is 4, and algo is dqn"),
        ({"algo": "dqn", "buffer_size": 100}, "buffer_size is 100, and 16 environments"),
        ({"algo": "dqn", "executor": "compile"}, "executor is compile, which is PPO's"),
        ({"algo": "dqn", "kernels": "fused"}, "kernels is fused, which is PPO's"),
        ({"algo": "dqn", "micro_batch": 4}, "micro_batch is 4, which is PPO's"),
        ({"algo": "dqn", "epsilon_end": 2.0}, "epsilon_end is 2; it must lie between 0 and 1"),
        ({"algo": "dqn", "tau": 0.0}, "tau is 0; it must be above 0"),
        ({"algo": "dqn", "update_ratio": -1}, "update_ratio is -1; it must be above 0"),
        ({"algo": "dqn", "n_step_return": 0}, "n_step_return is 0; it must be 1 or more"),
        ({"algo": "dqn", "batch_size": 0}, "batch_size is 0; it must be 1 or more"),
        ({"algo": "dqn", "epsilon_start": 0.1, "epsilon_end": 0.5}, "exploration falls"),
    ],
)
def test_what_cannot_be_is_said(settings: dict[str, Any], said: str) -> None:
    assert any(said in problem for problem in problems_of(settings))


def test_a_preset_of_rollouts_is_not_for_dqn() -> None:
    (problem,) = problems_of({"algo": "dqn"}, preset="heavy")
    assert "preset is 'heavy', and algo is dqn" in problem


def test_a_minibatch_of_dqn_divides_nothing() -> None:
    assert resolve({"algo": "dqn", "batch_size": 37}).minibatch == 37
    assert resolve({"algo": "dqn", "batch_size": "auto"}).minibatch == 32
