"""Tensor environments against Gymnasium's, of which they are to be equals, step for step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from twins import (
    TWINS,
    WIDER,
    Twin,
    draws,
    some_actions,
    some_motions,
    state_of,
    step_gymnasium,
    step_tensors,
)

SWEEP = 5000
every_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)


def expect_equal(twin: Twin, motions: np.ndarray, actions: np.ndarray) -> None:
    """In float64 the same observation, to the last place but one of float32, and the same end."""
    ours = step_tensors(twin, motions, actions, torch.float64)
    theirs = step_gymnasium(twin, motions, actions)
    np.testing.assert_allclose(ours.obs, theirs.obs, rtol=2.4e-7, atol=1e-9)
    np.testing.assert_allclose(ours.reward, theirs.reward, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(ours.terminated, theirs.terminated)


@every_twin
def test_a_step_equals_gymnasiums(twin: Twin) -> None:
    motions = some_motions(twin, SWEEP, seed=1, off_edge=0.0)
    expect_equal(twin, motions, some_actions(twin.make().action_space, SWEEP))


@every_twin
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_step_from_any_state_equals_gymnasiums(twin: Twin, data: st.DataObject) -> None:
    numbers = [
        st.sampled_from(edges) | st.floats(-widest, widest)
        for edges, widest in zip(twin.edges, twin.widest, strict=True)
    ]
    motion = data.draw(st.tuples(*numbers))
    action = data.draw(any_action(twin.make().action_space))
    expect_equal(twin, np.array([motion]), np.array([action]))


def any_action(space: Any) -> st.SearchStrategy[Any]:
    if isinstance(space, spaces.Discrete):
        return st.integers(0, int(space.n) - 1)
    return st.tuples(st.floats(WIDER * space.low.item(), WIDER * space.high.item()))


@every_twin
def test_a_step_in_float32_is_near_gymnasiums(twin: Twin) -> None:
    motions = some_motions(twin, SWEEP, seed=2, off_edge=1e-3).astype(np.float32)
    actions = some_actions(twin.make().action_space, SWEEP)
    actions = actions.astype(np.float32) if actions.dtype == np.float64 else actions
    ours = step_tensors(twin, motions, actions, torch.float32)
    theirs = step_gymnasium(twin, motions, actions)
    np.testing.assert_allclose(ours.obs, theirs.obs, rtol=2e-6, atol=twin.near)
    np.testing.assert_allclose(ours.reward, theirs.reward, rtol=2e-6, atol=twin.near)
    np.testing.assert_array_equal(ours.terminated, theirs.terminated)
    assert np.median(np.abs(ours.obs - theirs.obs)) < 1e-6
    some_end = SWEEP / 50 < ours.terminated.sum() < SWEEP
    assert some_end == (twin.name != "Pendulum-v1")


def test_the_angles_of_an_acrobot_stay_within_a_turn() -> None:
    twin = next(twin for twin in TWINS if twin.name == "Acrobot-v1")
    motion = torch.from_numpy(some_motions(twin, SWEEP, seed=5, off_edge=1e-3)).float()
    env = twin.make()
    action = torch.from_numpy(some_actions(env.action_space, SWEEP))
    turned = env.step(state_of(motion), action, draws(SWEEP)).state["motion"][:, :2]
    assert turned.abs().max() <= math.pi + 1e-6


@every_twin
def test_spaces_are_gymnasiums(twin: Twin) -> None:
    env, theirs = twin.make(), gymnasium.make(twin.name)
    assert env.observation_space == theirs.observation_space
    assert env.action_space == theirs.action_space


@every_twin
def test_an_episode_is_as_long_as_gymnasiums(twin: Twin) -> None:
    longest = gymnasium.spec(twin.name).max_episode_steps
    assert longest is not None
    for env, limit in ((twin.make(), longest), (twin.make(max_episode_steps=7), 7)):
        age = torch.arange(limit + 1)
        state = {"motion": torch.zeros(limit + 1, len(twin.widest)), "age": age}
        action = torch.from_numpy(some_actions(env.action_space, limit + 1))
        step = env.step(state, action, draws(limit + 1))
        assert torch.equal(step.truncated, age >= limit - 1)
        assert torch.equal(step.state["age"], age + 1)


@every_twin
def test_the_last_step_may_be_an_end_of_both_kinds(twin: Twin) -> None:
    motions = some_motions(twin, 100, seed=4, off_edge=0.0)
    env = twin.make(max_episode_steps=7)
    actions = some_actions(env.action_space, 100)
    step = env.step(
        state_of(torch.from_numpy(motions), age=6), torch.from_numpy(actions), draws(100)
    )
    np.testing.assert_array_equal(
        step.terminated, step_gymnasium(twin, motions, actions).terminated
    )
    assert step.truncated.all()


@every_twin
def test_a_first_observation_is_gymnasiums(twin: Twin) -> None:
    env = twin.make()
    theirs: Any = gymnasium.make(twin.name).unwrapped
    for seed in range(50):
        expected, _ = theirs.reset(seed=seed)
        motion = torch.from_numpy(np.array(theirs.state, np.float64))[None]
        obs = env.observe(state_of(motion))
        assert isinstance(obs, Tensor)
        np.testing.assert_allclose(obs[0].float(), expected, rtol=2.4e-7, atol=1e-9)


@every_twin
def test_gymnasium_starts_where_the_twin_says(twin: Twin) -> None:
    theirs: Any = gymnasium.make(twin.name).unwrapped
    theirs.reset(seed=0)
    starts = []
    for _ in range(400):
        theirs.reset()
        starts.append(np.array(theirs.state))
    expect_range(twin, np.array(starts))


@every_twin
def test_first_states_are_uniform(twin: Twin) -> None:
    n = 20_000
    state = twin.make().initial(n, draws(n, seed=3))
    assert not state["age"].any()
    motions = state["motion"].double().numpy()
    expect_range(twin, motions)
    for column, (low, high) in zip(motions.T, twin.start, strict=True):
        deviation = (high - low) / 12**0.5
        assert abs(column.mean() - (low + high) / 2) <= 4 * deviation / n**0.5
        assert abs(column.var() - deviation**2) <= 4 * deviation**2 * (0.8 / n) ** 0.5
    moving = motions[:, np.ptp(motions, axis=0) > 0]
    together = np.corrcoef(moving, rowvar=False) if moving.shape[1] > 1 else np.eye(1)
    assert np.abs(together - np.eye(len(together))).max() < 4 / n**0.5


def expect_range(twin: Twin, motions: np.ndarray) -> None:
    """All within the ranges of first states, and reaching to both ends."""
    low, high = np.array(twin.start).T
    slack, end = 1e-7, (high - low) / 20
    assert (motions >= low - slack).all()
    assert (motions <= high + slack).all()
    assert (motions.min(0) <= low + end).all()
    assert (motions.max(0) >= high - end).all()
