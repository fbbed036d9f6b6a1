"""What every tensor environment promises whoever runs it: see `types.TensorEnv`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch
from torch import Tensor
from twins import draws, some_actions

import stoker.envs.tensor
from stoker.types import DeviceObs, TensorEnv, TensorState, TensorStep

ROWS = 37  # no multiple of what a processor computes at once


def environments() -> list[type[Any]]:
    """Every class of the package that is a whole environment."""
    folder = stoker.envs.tensor
    modules = [
        importlib.import_module(f"{folder.__name__}.{found.name}")
        for found in pkgutil.iter_modules(folder.__path__)
    ]
    return [
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and {"initial", "step"} <= set(dir(kind))
        if not kind.__name__.startswith("_")
    ]


every_env = pytest.mark.parametrize("kind", environments())


def leaves(obs: Tensor | DeviceObs) -> DeviceObs:
    return {"obs": obs} if isinstance(obs, Tensor) else obs


def actions(env: TensorEnv, n: int, seed: int = 0) -> Tensor:
    action = torch.from_numpy(some_actions(env.action_space, n, seed))
    return action.float() if action.is_floating_point() else action


def kinds(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype, torch.device]]:
    return {name: (value.shape, value.dtype, value.device) for name, value in tensors.items()}


def begun(env: TensorEnv, steps: int = 20) -> TensorState:
    """Episodes that have gone some way."""
    state = env.initial(ROWS, draws(ROWS, seed=1))
    for t in range(steps):
        state = env.step(state, actions(env, ROWS, seed=t), draws(ROWS, seed=t)).state
    return state


def expect_same(one: TensorStep, other: TensorStep) -> None:
    """Bit by bit."""
    for name in one.state:
        assert torch.equal(one.state[name], other.state[name])
    for mine, yours in zip(one[1:4], other[1:4], strict=True):
        assert torch.equal(mine, yours)


def test_the_environments_are_found() -> None:
    names = {kind.__name__ for kind in environments()}
    assert {"Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum"} <= names


@every_env
def test_shapes_and_dtypes_stay(kind: type[Any]) -> None:
    env: TensorEnv = kind()
    state = env.initial(ROWS, draws(ROWS))
    first, seen = kinds(state), kinds(leaves(env.observe(state)))
    assert {shape[0] for shape, _, _ in (first | seen).values()} == {ROWS}
    for t in range(10):
        step = env.step(state, actions(env, ROWS, seed=t), draws(ROWS, seed=t))
        state = step.state
        assert kinds(state) == first
        assert kinds(leaves(env.observe(state))) == seen
        assert [field.shape for field in step[1:4]] == [(ROWS,)] * 3
        assert [field.dtype for field in step[1:4]] == [torch.float32, torch.bool, torch.bool]


@every_env
def test_what_is_seen_is_in_the_space(kind: type[Any]) -> None:
    env: TensorEnv = kind()
    state = env.initial(ROWS, draws(ROWS))
    going = torch.ones(ROWS, dtype=torch.bool)
    for t in range(100):
        obs = env.observe(state)
        for row in range(ROWS):
            if isinstance(obs, Tensor):
                one: Any = obs[row].numpy()
            else:
                one = {name: leaf[row].numpy() for name, leaf in obs.items()}
            assert not going[row] or one in env.observation_space
        step = env.step(state, actions(env, ROWS, seed=t), draws(ROWS, seed=t))
        state, going = step.state, going & ~step.terminated


@every_env
def test_a_row_does_not_depend_on_the_others(kind: type[Any]) -> None:
    env: TensorEnv = kind()
    state, action = begun(env), actions(env, ROWS)
    together = env.step(state, action, draws(ROWS))
    seen = leaves(env.observe(together.state))
    for row in (0, 7, 8, ROWS - 1):
        only = slice(row, row + 1)
        mine = {name: value[only] for name, value in state.items()}
        alone = env.step(mine, action[only], draws(1, first=row))
        cut = TensorStep(
            {name: value[only] for name, value in together.state.items()},
            together.reward[only],
            together.terminated[only],
            together.truncated[only],
        )
        expect_same(alone, cut)
        for name, leaf in leaves(env.observe(alone.state)).items():
            assert torch.equal(leaf, seen[name][only])


@every_env
def test_a_step_leaves_the_state_it_came_from(kind: type[Any]) -> None:
    env: TensorEnv = kind()
    state = begun(env)
    before = {name: value.clone() for name, value in state.items()}
    env.step(state, actions(env, ROWS), draws(ROWS))
    assert all(torch.equal(state[name], before[name]) for name in before)


@every_env
def test_it_compiles_as_one_graph(kind: type[Any]) -> None:
    env: TensorEnv = kind()

    def forward(state: TensorState, action: Tensor) -> tuple[TensorStep, DeviceObs, TensorState]:
        step = env.step(state, action, draws(ROWS))
        return step, leaves(env.observe(step.state)), env.initial(ROWS, draws(ROWS))

    torch._dynamo.reset()
    compiled = torch.compile(forward, backend="eager", fullgraph=True)
    state, action = begun(env), actions(env, ROWS)
    step, seen, first = forward(state, action)
    compiled_step, compiled_seen, compiled_first = compiled(state, action)
    expect_same(step, compiled_step)
    assert all(torch.equal(seen[name], compiled_seen[name]) for name in seen)
    assert all(torch.equal(first[name], compiled_first[name]) for name in first)


@every_env
def test_nothing_is_read_and_nothing_is_elsewhere(kind: type[Any]) -> None:
    """Tensors of the device "meta" have no values, and go with none of another device."""
    env: TensorEnv = kind()
    state = env.initial(ROWS, draws(ROWS, device="meta"))
    step = env.step(state, actions(env, ROWS).to("meta"), draws(ROWS, device="meta"))
    made = [*step.state.values(), *step[1:4], *leaves(env.observe(step.state)).values()]
    assert {tensor.device.type for tensor in made} == {"meta"}
