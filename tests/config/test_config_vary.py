"""What agents of a population differ in: how it is written, refused and drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.train import parse_train
from stoker.config import resolve
from stoker.config.load import from_flat
from stoker.config.vary import VARIED, Choice, Range, drawn_settings, read_spread
from stoker.errors import ConfigError

BOTH = {"learning_rate": "0.0001..0.01", "ent_coef": [0.0, 0.003]}


def problems_of(vary: Any, population: int = 4) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve({"vary": vary, "population": population})
    return caught.value.problems


def test_flags_files_and_python_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "vary.yaml"
    file.write_text("population: 4\nvary:\n  lr: 1e-4..1e-2\n  ent-coef: [0, 3e-3]\n")
    flag = ["--population", "4", "--device", "cpu", "--vary"]
    written = [
        resolve({}, file=file),
        resolve({"population": 4, "vary": {"lr": "1e-4..1e-2", "ent_coef": [0, np.float64(3e-3)]}}),
        parse_train([*flag, "lr=1e-4..1e-2 ent_coef=0,0.003"])[0],
        parse_train([*flag, "lr=1e-4..1e-2", "ent-coef=0,3e-3"])[0],
        parse_train([*flag, "lr = 1e-4 .. 1e-2  ent_coef = 0, 3e-3"])[0],
        parse_train(["--config", str(file), "--device", "cpu"])[0],
    ]
    assert [config.run.vary for config in written] == [BOTH] * 6


def test_a_flag_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "vary.yaml").write_text("population: 4\nvary: {lr: 1e-4..1e-2}\n")
    words = ["--config", str(tmp_path / "vary.yaml"), "--vary", "vf_coef=0.1,1", "--device", "cpu"]
    assert parse_train(words)[0].run.vary == {"vf_coef": [0.1, 1.0]}


def test_it_round_trips_through_a_file() -> None:
    config = resolve({"vary": {**BOTH, "clip_range": "0.1..0.3"}, "population": 2})
    assert from_flat(yaml.safe_load(yaml.safe_dump(config.flat()))) == config


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({"gamma": "0.9..1"}, "'gamma' cannot differ from agent to agent; learning_rate, clip_r"),
        ({"learnin_rate": "1e-4..1e-2"}, "vf_coef can. Did you mean learning_rate?"),
        ({7: "1e-4..1e-2"}, "7 cannot differ"),
        ({"lr": "1e-2..1e-4"}, "learning_rate: 1e-2..1e-4 is empty; a range goes up"),
        ({"lr": "1e-2..1e-2"}, "learning_rate: 1e-2..1e-2 is empty"),
        ({"lr": "1e-4:1e-2"}, "'1e-4:1e-2' is neither a range, such as 1e-4..1e-2, nor a list"),
        ({"lr": "1e-4..fast"}, "'fast' is not a number"),
        ({"lr": "1e-4.."}, "'' is not a number"),
        ({"lr": "1e-4..inf"}, "'inf' is not a finite number"),
        ({"lr": ""}, "'' is neither a range"),
        ({"lr": 0.01}, "0.01 is neither a range"),  # as YAML reads 0:0.01
        ({"lr": [0.01]}, "nor a list of several values"),
        ({"lr": [0.01, 0.01]}, "nor a list of several values"),
        ({"lr": (0.01, 0.1)}, "is neither a range"),
        ({"lr": [0.01, None]}, "learning_rate: "),
        ({"lr": [0.01, True]}, "True is not a number"),
        ({"lr": "0..1e-2"}, "learning_rate is 0; it must be above 0."),
        ({"clip_range": [-0.1, 0.2]}, "clip_range is -0.1; it must be above 0."),
        ({"ent_coef": "-0.1..0.2"}, "ent_coef is -0.1; it must be 0 or more."),
        ({"lr": "1..2", "learning-rate": "1..2"}, "lr and learning-rate are the same setting"),
        ("lr=1e-4..1e-2", "is not a mapping"),
    ],
)
def test_what_cannot_be_drawn_from_is_explained_in_one_sentence(vary: Any, said: str) -> None:
    (problem,) = problems_of(vary)
    assert problem.startswith("vary: ")
    assert said in problem
    assert problem[-1] in ".?"


def test_one_agent_differs_from_nobody() -> None:
    (problem,) = problems_of(BOTH, population=1)
    assert "population is 1. Add --population" in problem


def test_all_that_is_wrong_is_told_at_once() -> None:
    vary = {"gamma": "0..1", "lr": "2..1", "ent_coef": "-1..1"}
    with pytest.raises(ConfigError) as caught:
        resolve({"vary": vary, "n_steps": 0, "clip_range": 0})
    assert len(caught.value.problems) == 6


def test_a_name_that_is_there_twice_in_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse_train(["--vary", "lr=1..2 lr=2..3", "--device", "cpu"])
    assert left.value.code == 2
    assert "lr is there twice" in capsys.readouterr().err


def test_the_same_is_drawn_in_any_population_and_beside_any_other_setting() -> None:
    four, many = (drawn_settings(BOTH, seed=3, agents=agents) for agents in (4, 64))
    assert many[:4] == four
    alone = drawn_settings({"lr": BOTH["learning_rate"]}, seed=3, agents=4)
    assert [own["learning_rate"] for own in four] == [own["learning_rate"] for own in alone]
    rates = {own["learning_rate"] for own in many}
    assert len(rates) > 60
    other = {own["learning_rate"] for own in drawn_settings(BOTH, seed=4, agents=64)}
    assert len(rates & other) < 4, "another seed draws others, also for another agent"


def test_draws_are_known() -> None:
    """A run that is resumed by a later version goes on with the settings it began with."""
    drawn = drawn_settings(BOTH, seed=0, agents=4)
    assert [own["learning_rate"] for own in drawn] == [0.006068, 0.0004178, 0.001172, 0.0001061]
    assert [own["ent_coef"] for own in drawn] == [0.0, 0.0, 0.0, 0.003]


def test_a_range_above_0_is_drawn_from_by_logarithm() -> None:
    drawn = [own["learning_rate"] for own in drawn_settings({"lr": "1e-4..1e-2"}, 0, 2000)]
    assert sum(rate < 1e-3 for rate in drawn) == pytest.approx(1000, abs=100)
    plain = [own["ent_coef"] for own in drawn_settings({"ent_coef": "0..0.01"}, 0, 2000)]
    assert sum(weight < 5e-3 for weight in plain) == pytest.approx(1000, abs=100)


def test_each_of_a_list_is_as_likely() -> None:
    drawn = [own["vf_coef"] for own in drawn_settings({"vf_coef": [0.1, 0.5, 1]}, 0, 3000)]
    for value in (0.1, 0.5, 1.0):
        assert drawn.count(value) == pytest.approx(1000, abs=100)


@given(
    st.floats(0, 1, exclude_max=True),
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.floats(1e-9, 1e6),
)
def test_a_draw_stays_in_its_range(chance: float, low: float, more: float) -> None:
    spread = Range(low, low + more)
    number = spread.draw(chance)
    assert spread.low <= number <= spread.high
    assert math.isfinite(number)


def test_what_is_drawn_can_be_typed() -> None:
    number = Range(1e-4, 1e-2).draw(0.123456789)
    assert number == float(f"{number:.4g}")
    assert read_spread("1e-4..1e-2") == Range(1e-4, 1e-2)
    assert read_spread([1, 2, 2]) == Choice((1.0, 2.0, 2.0))


def test_what_may_differ_is_what_the_learner_takes() -> None:
    from stoker.learn.fused import Scalars

    assert Scalars._fields == VARIED


def test_each_agent_can_be_given_its_own() -> None:
    vary = {"lr": {"each": [1e-3, "1e-4", 1e-2, 1e-3]}}
    config = resolve({"vary": vary, "population": 4})
    kept = from_flat(config.flat()).run.vary
    assert kept == {"learning_rate": {"each": [1e-3, 1e-4, 1e-2, 1e-3]}}
    drawn = drawn_settings(kept, seed=7, agents=4)
    assert [each["learning_rate"] for each in drawn] == [1e-3, 1e-4, 1e-2, 1e-3]


def test_what_each_agent_is_given_must_be_allowed_and_enough() -> None:
    assert (
        "has 2 numbers, one for each agent, and population is 4"
        in problems_of({"lr": {"each": [1e-3, 1e-4]}})[0]
    )
    assert "learning_rate is -1" in problems_of({"lr": {"each": [1e-3, -1, 1e-3, 1e-3]}})[0]
    assert "neither a range" in problems_of({"lr": {"every": [1e-3]}})[0]
