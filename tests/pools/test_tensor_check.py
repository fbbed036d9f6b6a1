"""What is said of tensor environments that do not keep the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensor_envs import Dice, Ladder

from stoker.errors import EnvError
from stoker.pools.tensor import describe_tensor_env
from stoker.pools.tensor_check import Findings, check_tensor_env
from stoker.types import Rng, TensorState, TensorStep

CPU = torch.device("cpu")


def findings(env: Any) -> Findings:
    return check_tensor_env(env, describe_tensor_env("test", env), CPU)


class Broken(Ladder):
    """Does something more in every step."""

    def step(self, state: TensorState, action: torch.Tensor, rng: Rng) -> TensorStep:
        self.also(state, rng)
        return self.changed(super().step(state, action, rng), state)

    def also(self, state: TensorState, rng: Rng) -> None: ...

    def changed(self, step: TensorStep, state: TensorState) -> TensorStep:
        return step


@pytest.mark.parametrize("env", [Ladder(), Dice()])
def test_nothing_is_found_where_nothing_is_amiss(env: Any) -> None:
    assert findings(env) == ([], [])


BREAKS = {
    "if state['rung'].max() > 3: pass": "decides in Python",
    "state['rung'].sum().item()": "fetches values",
    "float(state['rung'][0])": "fetches values",
    "range(state['rung'][0])": "fetches values",
    "state['rung'].tolist()": "fetches values",
    "state['rung'].to('cpu')": "fetches values",
    "state['rung'][state['rung'] > 0]": "selects by a mask",
    "state['rung'].clone()[state['rung'] > 0] = 1": "selects by a mask",
    "state['rung'].nonzero()": "size depends on values",
    "torch.where(state['rung'] > 0)": "size depends on values",
    "torch.tensor([1.0, 2.0])": "makes a tensor of Python's values",
    "torch.rand(5)": "draws from torch's own generator",
    "torch.randn_like(state['rung'].float())": "draws from torch's own generator",
}


@pytest.mark.parametrize("line", BREAKS)
def test_what_breaks_a_capture_is_named_with_its_line(line: str) -> None:
    class Breaks(Broken):
        def also(self, state: TensorState, rng: Rng) -> None:
            exec(compile(line, "theirs.py", "exec"), {"torch": torch, "state": state})

    found = findings(Breaks())
    assert found.wrong == []
    (sentence,) = found.breaks
    assert BREAKS[line] in sentence
    assert sentence.startswith("theirs.py, line 1")


WRONG = {
    "in place": (lambda s, old: old["rung"].add_(1) is None or s, "changes state['rung'] in place"),
    "dtype": (
        lambda s, old: s._replace(state=s.state | {"rung": s.state["rung"].float()}),
        "state['rung'] is [5] torch.int64 before a step and [5] torch.float32 after it",
    ),
    "name": (
        lambda s, old: s._replace(state={"rung": s.state["rung"]}),
        "state['age'] is [5] torch.int64 before a step and missing after it",
    ),
    "rows": (
        lambda s, old: s._replace(state=s.state | {"age": s.state["age"][:2]}),
        "state['age'] of step has the shape (2,) for 5 environments",
    ),
    "no dict": (lambda s, old: s._replace(state=[1]), "step gives a list as the state"),
    "reward": (lambda s, old: s._replace(reward=1.0), "reward of step is a float; expected a"),
    "reward shape": (
        lambda s, old: s._replace(reward=s.reward[:, None]),
        "reward of step has the shape [5, 1]; expected [5]",
    ),
    "flags": (
        lambda s, old: s._replace(terminated=s.terminated.long()),
        "terminated of step is of int64; expected bool",
    ),
    "nan": (lambda s, old: s._replace(reward=s.reward / 0), "reward of step holds NaN or infinity"),
    "a tuple": (lambda s, old: tuple(s), "step gives a tuple; expected a stoker.types.TensorStep"),
    "no metrics": (lambda s, old: s._replace(metrics=None), "metrics of step is a NoneType"),
    "metrics": (
        lambda s, old: s._replace(metrics={}),
        "step gives the metrics []; metric_names declares ['rung']",
    ),
    "others": (
        lambda s, old: s._replace(reward=s.reward + old["rung"].float().mean()),
        "depends on the other rows of the batch",
    ),
    "others end": (
        lambda s, old: s._replace(terminated=old["rung"] != old["rung"].float().mean()),
        "depends on the other rows of the batch",
    ),
    "others are reported": (
        lambda s, old: s._replace(metrics={"rung": old["rung"].float() - old["rung"].sum()}),
        "depends on the other rows of the batch",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_gives_wrong_results(how: str) -> None:
    change, expected = WRONG[how]

    class Wrong(Broken):
        def changed(self, step: TensorStep, state: TensorState) -> TensorStep:
            changed: TensorStep = change(step, state)
            return changed

    (sentence,) = findings(Wrong()).wrong
    assert expected in sentence


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (lambda s: s["rung"].float(), "What observe gives has the shape [5]; expected [5, 3]"),
        (lambda s: s["rung"][:, None].expand(5, 3), "is of int64; expected float32"),
        (lambda s: s["rung"][:, None].expand(5, 3) / 0.0, "holds NaN or infinity"),
        (lambda s: {"other": s["rung"]}, "observe gives ['other']; the observation space has"),
        (lambda s: [1], "observe gives a list"),
    ],
)
def test_observations_that_are_not_what_the_space_says(seen: Any, expected: str) -> None:
    class Wrong(Ladder):
        def observe(self, state: TensorState) -> torch.Tensor:
            found: torch.Tensor = seen(state)
            return found

    (sentence,) = findings(Wrong()).wrong
    assert expected in sentence


def test_bounds_are_those_of_the_space_unless_they_are_left_alone() -> None:
    class Wide(Ladder):
        observation_space = spaces.Box(-0.5, 0.5, (3,), np.float32)

    class Rounded(Ladder):
        observation_space = spaces.Box(-3.0, 1.0 - 1e-6, (3,), np.float32)

        def observe(self, state: TensorState) -> torch.Tensor:
            return super().observe(state).clamp(max=1.0)

    (sentence,) = findings(Wide()).wrong
    assert "is not within the bounds of its space, -0.5 to 0.5: it goes from" in sentence
    spec = describe_tensor_env("wide", Wide())
    assert check_tensor_env(Wide(), spec, CPU, check_bounds=False).wrong == []
    assert findings(Rounded()).wrong == []


def test_linear_dynamics_are_nobody_elses_business() -> None:
    """A product of matrices has other bits in a batch of another size."""
    weights = torch.linspace(-1, 1, 64 * 64).view(64, 64) / 8

    class Linear(Ladder):
        def initial(self, n: int, rng: Rng) -> TensorState:
            return super().initial(n, rng) | {"x": rng.uniform(64), "unknown": rng.uniform() * nan}

        def step(self, state: TensorState, action: torch.Tensor, rng: Rng) -> TensorStep:
            step = super().step(state, action, rng)
            kept = {"x": state["x"] @ weights, "unknown": state["unknown"]}
            return step._replace(state=step.state | kept)

    nan = torch.nan
    assert findings(Linear()) == ([], [])


def test_what_one_sees_must_not_depend_on_others() -> None:
    class Compares(Ladder):
        def observe(self, state: TensorState) -> torch.Tensor:
            seen = super().observe(state)
            return seen - seen.mean(0)

    (sentence,) = findings(Compares()).wrong
    assert "depends on the other rows of the batch" in sentence


def test_observing_must_not_change_anything() -> None:
    class Touches(Ladder):
        def observe(self, state: TensorState) -> torch.Tensor:
            state["rung"] += 1
            return super().observe(state)

    (sentence,) = findings(Touches()).wrong
    assert "observe changes state['rung'] in place" in sentence


def test_a_number_of_rows_that_is_not_asked_for() -> None:
    class Five(Ladder):
        def initial(self, n: int, rng: Rng) -> TensorState:
            return {name: torch.zeros(5, dtype=torch.int64) for name in ("rung", "age")}

    (sentence,) = findings(Five()).wrong
    assert "state['rung'] of initial has the shape (5,) for 3 environments" in sentence


def test_categories_outside_of_their_space() -> None:
    class Odd(Ladder):
        observation_space: Any = spaces.Discrete(3, start=1)

        def observe(self, state: TensorState) -> torch.Tensor:
            return state["age"]

    (sentence,) = findings(Odd()).wrong
    assert "What observe gives holds categories that are not from 1 to 3" in sentence


def test_what_it_raises_is_told_as_its_own() -> None:
    class Raises(Ladder):
        def step(self, *given: Any) -> TensorStep:
            raise RuntimeError("the reactor is offline")

    with pytest.raises(EnvError, match=r"test raised RuntimeError in step\(\): the reactor is off"):
        findings(Raises())

    class Spaceless:
        initial = observe = step = print

    with pytest.raises(EnvError, match="test has no observation_space"):
        findings(Spaceless())


def test_another_device() -> None:
    class Elsewhere(Ladder):
        def initial(self, n: int, rng: Rng) -> TensorState:
            return {name: v.to("meta") for name, v in super().initial(n, rng).items()}

    (sentence,) = findings(Elsewhere()).wrong
    assert "state['rung'] of initial is on the meta, and the run on the cpu" in sentence
