"""Search spaces: what is refused, all at once, and that whatever is drawn can be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import resolve
from stoker.config.load import from_flat
from stoker.errors import ConfigError
from stoker.sweep.ledger import draw
from stoker.sweep.plan import settings_for
from stoker.sweep.space import (
    Choices,
    Span,
    capped,
    default_space,
    read_space_file,
    understand,
    without,
)

BASE = resolve({"env": "CartPole-v1"})


def problems_of(written: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        understand(yaml.safe_load(written), BASE)
    assert caught.value.exit_code == 2
    return caught.value.problems


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{learning_rat: [1e-3, 1e-4]}", "no setting 'learning_rat'. Did you mean learning_rate"),
        ("{learning_rate: {low: 1e-2, high: 1e-3}}", "low 0.01 is above high 0.001"),
        ("{learning_rate: {low: 0.1, high: 0.1}}", "nothing to search"),
        ("{ent_coef: {low: 0, high: 0.1, log: true}}", "has no logarithm"),
        ("{ent_coef: {low: 0.1, high: 1, log: maybe}}", "log is 'maybe'"),
        ("{network_arch: []}", "list of choices is empty"),
        ("{network_arch: ['64,64']}", "the only choice"),
        ("{network_arch: ['64,64', [64, 64]]}", "a choice is there twice"),
        ("{network_arch: {low: 1, high: 2}}", "it is no number"),
        ("{activation: [tanh, step]}", "'step' is none of tanh, relu"),
        ("{n_epochs: {low: 1.5, high: 4}}", "1.5 is not a whole number"),
        ("{n_epochs: {low: four, high: 4}}", "'four' is not a whole number"),
        ("{n_epochs: {low: 0, high: 4}}", "n_epochs is 0; it must be 1 or more"),
        ("{n_epochs: {low: 4}}", "low or high is missing"),
        ("{n_epochs: {low: 4, high: 8, steps: 2}}", "steps is not known"),
        ("{n_epochs: {low: 4, high: 8, step: 0}}", "step is 0"),
        ("{n_epochs: {low: 4, high: 8, step: 5}}", "step 5 is larger than the range"),
        ("{n_epochs: {low: 4, high: 8, step: 2, log: true}}", "exclude each other"),
        ("{n_epochs: 4}", "4 is no range and no list"),
        ("{gamma: [0.9, 1.1]}", "gamma is 1.1; it must lie between 0 and 1"),
        ("{lr: [1e-3, 1e-4], learning_rate: [1e-3, 1e-4]}", "are the same setting"),
        ("{total_step: [64, 128], n_steps: [1, 2]}", "n_steps follows from total_step"),
        ("{total_step: {low: 0, high: 128}}", "total_step is 0"),
        ("{n_envs: [2, 100k], n_steps: [2, 100k]}", "rows; it must have at most"),
        ("{n_envs: [1, 2], n_steps: [1, 2]}", "the smallest rollout has 1 row"),
        ("{seed: [1, 2]}", "seed is the same for every trial"),
        ("{env: [A, B]}", "env is the same for every trial"),
        ("{}", "it is empty"),
    ],
)
def test_a_mistake_is_a_sentence(written: str, says: str) -> None:
    (problem,) = problems_of(written)
    assert problem.startswith("space: ")
    assert problem.endswith((".", "?"))
    assert says in problem


def test_all_mistakes_are_told_at_once() -> None:
    written = "{lerning_rate: [1, 2], n_epochs: {low: 9, high: 3}, network_arch: [], gamma: [0, 2]}"
    assert len(problems_of(written)) == 4


def test_a_file_that_is_no_space_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the space file"):
        read_space_file(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="must hold settings by name"):
        read_space_file(tmp_path / "list.yaml")


def test_what_is_written_is_what_is_understood() -> None:
    written = {
        "lr": {"low": "1e-5", "high": "1e-2", "log": True},
        "repeat-times": {"low": 4, "high": 33, "step": 4},
        "network_arch": [[64, 64], "128,128"],
        "batch_size": ["auto", "1k"],
        "target_kl": [None, 0.03],
    }
    space = understand(written, BASE)
    assert space == {
        "learning_rate": Span(1e-5, 1e-2, None, True, False),
        "n_epochs": Span(4, 32, 4, False, True),
        "network_arch": Choices(("64,64", "128,128")),
        "batch_size": Choices(("auto", 1000)),
        "target_kl": Choices((None, 0.03)),
    }
    assert understand({name: spread.plain for name, spread in space.items()}, BASE) == space


def test_the_default_space_has_the_guides_ranges() -> None:
    space = understand(default_space("ppo"), BASE)
    assert space["total_step"] == Span(32768, 98304, 16384, False, True)
    assert space["n_workers"] == Span(20, 32, None, False, True)
    assert space["n_epochs"] == Span(4, 32, None, False, True)
    assert {"learning_rate", "ent_coef", "network_arch"} <= space.keys()


def test_every_algorithm_has_a_space_of_plain_settings() -> None:
    named = {"learning_rate", "batch_size", "gamma", "network_arch"}
    assert named <= default_space("dqn").keys()
    assert understand(default_space("dqn"), resolve({"algo": "dqn"})).keys() >= named
    with pytest.raises(ConfigError, match="no default space for a2c"):
        default_space("a2c")


def test_workers_are_no_more_than_cores_and_that_is_said() -> None:
    space = understand(default_space("ppo"), BASE)
    fewer, told = capped(space, 24)
    assert fewer["n_workers"] == Span(20, 24, None, False, True)
    assert told is not None
    assert "20 to 32 in the space, 20 to 24 here" in told
    none, told = capped(space, 2)
    assert "n_workers" not in none
    assert told is not None
    assert "2 to 2 here" in told
    assert capped(space, 32) == (space, None)


def test_what_is_settled_is_not_searched() -> None:
    space = understand(default_space("ppo"), BASE)
    left = without(space, {"n_steps": 64, "learning_rate": 1e-3, "env": "x"})
    assert space.keys() - left.keys() == {"total_step", "learning_rate"}


def spans(least: int, most: int) -> st.SearchStrategy[dict[str, Any]]:
    ends = st.tuples(st.integers(least, most), st.integers(least, most)).filter(
        lambda pair: pair[0] < pair[1]
    )
    return ends.map(lambda pair: {"low": pair[0], "high": pair[1]})


ROLLOUTS = st.fixed_dictionaries(
    {"n_envs": spans(2, 300), "batch_size": spans(2, 5000)},
    optional={"learning_rate": st.just({"low": 1e-5, "high": 1e-2, "log": True})},
)
LENGTHS = st.one_of(
    st.fixed_dictionaries({"total_step": spans(1, 100_000)}),
    st.fixed_dictionaries({"n_steps": spans(1, 3000)}),
    st.just({}),
)


@given(ROLLOUTS, LENGTHS, st.integers(0, 2**31))
@settings(max_examples=60)
def test_whatever_is_drawn_can_be_trained(rollout: Any, length: Any, seed: int) -> None:
    space = understand({**rollout, **length}, BASE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    drawn = draw(study.ask(), space)
    flat = settings_for(BASE.flat(), drawn, seed)
    config = from_flat(flat)  # which raises where a rule is broken
    assert config.total_batch % config.minibatch == 0
    assert config.minibatch <= max(2, int(str(drawn["batch_size"]))) or config.total_batch < 5000
    assert config.env.n_envs == drawn["n_envs"]
    assert config.run.seed == seed
    if "total_step" in drawn:
        wanted = int(str(drawn["total_step"]))
        assert abs(config.total_batch - wanted) <= max(config.env.n_envs / 2, 1) or (
            config.ppo.n_steps == 1
        )


@given(st.integers(0, 2**31))
@settings(max_examples=20)
def test_dqns_space_can_always_be_trained(seed: int) -> None:
    base = resolve({"algo": "dqn"})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    drawn = draw(study.ask(), understand(default_space("dqn"), base))
    config = from_flat(settings_for(base.flat(), drawn, seed))
    assert config.minibatch == drawn["batch_size"]
    assert config.dqn.per == drawn["per"]


def test_a_replay_must_hold_what_the_hardest_draw_needs() -> None:
    with pytest.raises(ConfigError, match="space: buffer_size is 10000, and 2048 environments"):
        understand({"n_envs": [16, 2048]}, resolve({"algo": "dqn"}))


@given(st.integers(0, 2**31))
@settings(max_examples=20)
def test_the_default_space_can_always_be_trained(seed: int) -> None:
    space, _ = capped(understand(default_space("ppo"), BASE), 24)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    config = from_flat(settings_for(BASE.flat(), draw(study.ask(), space)))
    assert 32768 <= config.total_batch <= 98304
    assert config.minibatch >= 1024


def test_in_flight_follows_the_environments_unless_it_was_set_apart() -> None:
    def in_flight(**given: int) -> Any:
        return settings_for(resolve(given).flat(), {"n_envs": 8})["in_flight"]

    assert in_flight() == 0
    assert in_flight(n_envs=4) == 8
    assert in_flight(n_envs=4, in_flight=64) == 64
