"""What was tuned: kept by machine, environment and spaces, and found by `--preset auto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.cli.train import parse_train
from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError
from stoker.train import tuned

TUNED: dict[str, Any] = {"pool": "process", "n_workers": 2, "collect": "overlap"}
FLAGS = ["--preset", "auto", "--device", "cpu"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def keep(env: str = "CartPole-v1", **sizes: Any) -> Path:
    flat = resolve({"env": env, "n_envs": 6, "n_steps": 10, "batch_size": 30, **sizes}).flat()
    return tuned.keep(env, tuned.describe(EnvFactory(env)), flat, TUNED)


def test_the_preset_auto_is_what_was_kept(home: Path) -> None:
    assert keep().is_relative_to(home / "stoker" / "tuned")
    for config in (
        parse_train([*FLAGS, "--env", "CartPole-v1"])[0],
        stoker.resolve({"env": "CartPole-v1", "device": "cpu"}, preset="auto"),
    ):
        assert (config.env.n_envs, config.ppo.n_steps, config.minibatch) == (6, 10, 30)
        assert (config.env.pool, config.env.n_workers, config.env.collect) == tuple(TUNED.values())


def test_a_flag_beats_it_and_so_does_a_file(tmp_path: Path) -> None:
    keep()
    file = tmp_path / "settings.yaml"
    file.write_text("preset: auto\nenv: CartPole-v1\nn_steps: 20\n")
    config, _ = parse_train(["--config", str(file), "--device", "cpu", "--pool", "inline"])
    assert (config.env.n_envs, config.ppo.n_steps, config.env.pool) == (6, 20, "inline")


def test_without_it_the_defaults_are_used_and_it_is_said_what_to_do() -> None:
    with pytest.warns(UserWarning, match="`stoker tune --env Acrobot-v1` finds better ones"):
        config, _ = parse_train([*FLAGS, "--env", "Acrobot-v1"])
    assert (config.env.n_envs, config.env.pool) == (1, "auto")


def test_other_machines_environments_and_spaces_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = tuned.describe(EnvFactory("CartPole-v1"))
    here = tuned.place_of("CartPole-v1", spec)
    assert tuned.place_of("CartPole-v1", spec) == here
    other = tuned.describe(EnvFactory("Acrobot-v1"))
    assert (
        len({here, tuned.place_of("CartPole-v0", spec), tuned.place_of("CartPole-v1", other)}) == 3
    )
    monkeypatch.setattr("stoker.train.devices.usable_cores", lambda: 99)
    assert tuned.place_of("CartPole-v1", spec) != here


@pytest.mark.parametrize(
    "content", ["- a\n- list\n", "n_envs: [1", "\xff", "n_envs: 6\nruns_dir: elsewhere\n"]
)
def test_a_file_that_is_no_use_is_said_and_left(content: str) -> None:
    keep().write_text(content)
    with pytest.warns(UserWarning, match="cannot be used"):
        config, _ = parse_train([*FLAGS, "--env", "CartPole-v1"])
    assert config.env.n_envs == 1


def test_a_setting_that_there_is_not_is_said_with_the_file_it_is_in() -> None:
    place = keep()
    place.write_text("n_envz: 3\n")
    with pytest.warns(UserWarning, match=f"{place.name} cannot be used .it sets n_envz, which"):
        parse_train([*FLAGS, "--env", "CartPole-v1"])


def test_an_environment_that_there_is_not_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="CartPole-v7"):
        parse_train([*FLAGS, "--env", "CartPole-v7"])


@pytest.mark.parametrize("env", ["tensor/CartPole-v1", "CartPole-v1"])
def test_spaces_are_those_that_training_sees(env: str) -> None:
    spec = tuned.describe(EnvFactory(env))
    assert spec.name == env
    assert [leaf.shape for leaf in spec.observation.values()] == [(4,)]


def test_plain_settings_cannot_know_what_was_tuned() -> None:
    with pytest.raises(ConfigError, match=r"use stoker\.resolve"):
        resolve({}, preset="auto")
