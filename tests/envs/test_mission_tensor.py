"""The mission on tensors, held against the one in NumPy, to the bit wherever it counts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from mission_twins import SCENARIOS, Handed, Played, differing, drawn, play, scattered, stacked
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from stoker.envs.mission.env import MissionEnv
from stoker.envs.mission.observe import vector
from stoker.envs.mission.raster import raster
from stoker.envs.mission.rules import step as numpy_step
from stoker.envs.mission.scenario import COMPONENTS
from stoker.envs.mission.start import draws_at_start
from stoker.envs.mission.state import State
from stoker.envs.mission.tensor.env import TensorMission
from stoker.envs.mission.tensor.sight import look
from stoker.envs.mission.tensor.state import Missions, rules_on
from stoker.pools.draws import TensorRng, key_of
from stoker.types import DeviceObs, TensorStep

ROUNDING = 1e-6
"""What observations and rewards may differ by: NumPy has some of their numbers in float64."""
names = pytest.mark.parametrize("name", SCENARIOS)


@cache
def played(name: str) -> Played:
    return play(SCENARIOS[name], seeds=range(18))


def resets(name: str, n: int) -> tuple[np.ndarray, list[State]]:
    """What n resets of the NumPy mission draw, and come to."""
    env, uniforms, states = MissionEnv(SCENARIOS[name]), [], []
    for seed in range(n):
        env.np_random = np.random.default_rng(seed)
        uniforms.append(drawn(env, draws_at_start(env.rules)))
        env.reset()
        states.append(env.state)
    return np.stack(uniforms), states


def rng(ids: Tensor, tick: int = 0) -> TensorRng:
    return TensorRng(key_of(torch.full_like(ids, 7)), ids, torch.tensor(tick))


def test_what_is_played_comes_to_everything_that_may_happen() -> None:
    every = [played(name) for name in SCENARIOS]
    metrics = np.concatenate([one.metrics for one in every])
    assert len(metrics) > 3000
    assert (np.abs(metrics).max(0) > 0).all()
    assert sum(one.truncated.sum() for one in every) >= 3
    states = [state for one in every for state in one.after]
    assert {int(level) for state in states for level in state.altitude} == {0, 1, 2}
    assert sum((state.scan_wait == 10).any() for state in states) > 50
    assert sum((state.spotted_age == 0).any() for state in states) > 500


@names
def test_a_tick_leads_to_the_same_states(name: str) -> None:
    one = played(name)
    env = TensorMission(SCENARIOS[name])
    came = env.step(stacked(one.before), torch.from_numpy(one.action), Handed(one.uniforms))
    assert differing(came.state, stacked(one.after)) == []
    assert (came.terminated.numpy() == one.terminated).all()
    assert (came.truncated.numpy() == one.truncated).all()
    assert came.reward.numpy() == pytest.approx(one.reward, abs=10 * ROUNDING)
    assert tuple(came.metrics) == env.metric_names == MissionEnv.metric_names
    metrics = torch.stack(list(came.metrics.values()), -1).numpy()
    assert metrics == pytest.approx(one.metrics, abs=ROUNDING)
    exact = [i for i, component in enumerate(COMPONENTS) if component != "progress"]
    assert (metrics[:, exact] == one.metrics[:, exact].astype(np.float32)).all()


@names
def test_the_same_states_look_the_same(name: str) -> None:
    one = played(name)
    seen = TensorMission(SCENARIOS[name]).observe(stacked(one.after))
    assert isinstance(seen, Tensor)
    assert seen.numpy() == pytest.approx(one.vector, abs=ROUNDING)


@names
def test_ties_are_broken_alike(name: str) -> None:
    n, rng, rules = 300, np.random.default_rng(1), MissionEnv(SCENARIOS[name]).rules
    states, env = scattered(rules, n), TensorMission(SCENARIOS[name])
    looked = look(rules_on(torch.device("cpu"), rules), Missions(**stacked(states)))
    assert differing(looked._asdict(), stacked(states)) == []
    action = rng.integers(9, size=(n, rules.attackers))
    uniforms = rng.integers(9, size=(n, rules.units)).astype(np.float32) / 16
    came = env.step(stacked(states), torch.from_numpy(action), Handed(uniforms))
    outcomes = [numpy_step(rules, *row) for row in zip(states, action, uniforms, strict=True)]
    assert differing(came.state, stacked([outcome.state for outcome in outcomes])) == []
    seen = np.stack([vector(rules, outcome.state) for outcome in outcomes])
    assert env.observe(came.state).numpy() == pytest.approx(seen, abs=ROUNDING)


@names
def test_the_same_states_make_the_same_image(name: str) -> None:
    rules, states = MissionEnv(SCENARIOS[name]).rules, played(name).after[::5]
    seen = TensorMission(SCENARIOS[name], raster=True).observe(stacked(states))
    assert isinstance(seen, dict)
    assert (seen["raster"].numpy() == np.stack([raster(rules, state) for state in states])).all()
    assert torch.equal(seen["vector"], TensorMission(SCENARIOS[name]).observe(stacked(states)))


@names
def test_the_same_uniforms_begin_the_same_missions(name: str) -> None:
    uniforms, states = resets(name, 300)
    begun = TensorMission(SCENARIOS[name]).initial(300, Handed(uniforms))
    assert differing(begun, stacked(states)) == []


@names
def test_whole_episodes_stay_together(name: str) -> None:
    n, ticks, numpy_rng = 8, 60, np.random.default_rng(1)
    env, rules = TensorMission(SCENARIOS[name]), MissionEnv(SCENARIOS[name]).rules
    uniforms, twins = resets(name, n)
    state = env.initial(n, Handed(uniforms))
    for _ in range(ticks):
        action = numpy_rng.choice(9, (n, rules.attackers), p=[0.1, 0.4, *[0.5 / 7] * 7])
        luck = numpy_rng.random((n, rules.units), np.float32)
        came = env.step(state, torch.from_numpy(action), Handed(luck))
        outcomes = [numpy_step(rules, *row) for row in zip(twins, action, luck, strict=True)]
        state, twins = came.state, [outcome.state for outcome in outcomes]
        assert differing(state, stacked(twins)) == []


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each column over rows [n, ...], and how far off either may be."""
    rows = values.double().reshape(len(values), -1)
    both = torch.cat([rows, (rows - rows.mean(0)).square()], 1)
    return both.mean(0), both.std(0) / len(rows) ** 0.5


@pytest.mark.parametrize("name", ["skirmish", "crowd"])
def test_missions_begin_as_often_here_as_there(name: str) -> None:
    wanted = stacked(resets(name, 1000)[1])
    found = TensorMission(SCENARIOS[name]).initial(4000, rng(torch.arange(4000)))
    for field, values in found.items():
        (mean, error), (wanted_mean, wanted_error) = moments(values), moments(wanted[field])
        allowed = 5 * (error.square() + wanted_error.square()).sqrt() + 1e-6
        assert ((mean - wanted_mean).abs() <= allowed).all(), field
        lowest, highest = wanted[field].double().amin(), wanted[field].double().amax()
        slack = 0.02 * (highest - lowest)
        assert values.double().amin() >= lowest - slack, field
        assert values.double().amax() <= highest + slack, field


def whole(env: TensorMission, ids: Tensor, action: Tensor) -> tuple[TensorStep, Tensor | DeviceObs]:
    """A beginning, two ticks and what is seen then, of the environments `ids` [n]."""
    state = env.initial(len(ids), rng(ids))
    state = env.step(state, action, rng(ids, 1)).state
    came = env.step(state, action, rng(ids, 2))
    return came, env.observe(came.state)


def test_a_row_is_the_same_in_any_batch() -> None:
    one, env = played("crowd"), TensorMission(SCENARIOS["crowd"], raster=True)

    def step(rows: np.ndarray) -> list[Tensor]:
        state = stacked([one.before[row] for row in rows])
        came = env.step(state, torch.from_numpy(one.action[rows]), Handed(one.uniforms[rows]))
        return tree_leaves((came, env.observe(came.state)))

    every = step(np.arange(300))
    shuffled = np.random.default_rng(0).permutation(300)
    for rows in (shuffled, shuffled[:37], *np.split(shuffled[:12], 12)):
        for leaf, of_all in zip(step(rows), every, strict=True):
            assert torch.equal(leaf, of_all[torch.from_numpy(rows)])


def test_shapes_and_types_stay_and_spaces_hold_them() -> None:
    env, ids = TensorMission("stronghold", raster=True), torch.arange(5)
    first = env.initial(5, rng(ids))
    kept = {name: of.clone() for name, of in first.items()}
    came = env.step(first, torch.full((5, 6), 1), rng(ids, 1))
    assert differing(first, kept) == []
    for name, of in came.state.items():
        assert (of.shape, of.dtype) == (first[name].shape, first[name].dtype), name
    assert {of.dtype for of in (came.reward, *came.metrics.values())} == {torch.float32}
    assert came.terminated.dtype == came.truncated.dtype == torch.bool
    numpy_env = MissionEnv("stronghold", raster=True)
    assert env.action_space == numpy_env.action_space
    assert env.observation_space == numpy_env.observation_space
    seen = env.observe(came.state)
    for row in range(5):
        assert {name: of[row].numpy() for name, of in seen.items()} in env.observation_space


def test_nothing_an_episode_remembers_is_kept_under_two_names() -> None:
    state = TensorMission().initial(3, rng(torch.arange(3)))
    assert len({of.data_ptr() for of in state.values()}) == len(state)


def test_all_stays_on_a_device_whose_values_nobody_can_read() -> None:
    env = TensorMission(raster=True)
    ids = torch.arange(4, device="meta")
    came = whole(env, ids, torch.zeros(4, 4, dtype=torch.int64, device="meta"))
    assert {leaf.device.type for leaf in tree_leaves(came)} == {"meta"}


@pytest.mark.parametrize("used", [True, False])
def test_it_compiles_into_one_graph(used: bool) -> None:
    env, ids = TensorMission(SCENARIOS["fierce"], raster=True), torch.arange(6)
    action = torch.arange(24).view(6, 4) % 9
    expected = whole(TensorMission(SCENARIOS["fierce"], raster=True), ids, action)
    if used:
        whole(env, ids, action)
    torch._dynamo.reset()
    compiled = torch.compile(whole, backend="eager", fullgraph=True)
    for _ in range(2):
        found = compiled(env, ids, action)
        assert all(tree_leaves(tree_map(torch.equal, found, expected)))
