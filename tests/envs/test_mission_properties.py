"""What holds in every mission, whatever the commander does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from missions import march

from stoker.envs.mission.env import MissionEnv
from stoker.envs.mission.geometry import HEADING, UNIT_RADIUS
from stoker.envs.mission.observe import PER_ATTACKER
from stoker.envs.mission.rules import step
from stoker.envs.mission.state import State

CROWDED = {"attackers": [1, 4], "fliers": 2, "defenders": [0, 4], "obstacles": [0, 14], "arena": 80}
seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=10, deadline=None)


def missions(seed: int, ticks: int = 30) -> Iterator[tuple[MissionEnv, State, np.ndarray, float]]:
    """A mission of random crowds under a commander who marches, with some random actions."""
    env = MissionEnv(CROWDED)
    obs, _ = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(ticks):
        assert obs in env.observation_space
        assert env.state is not None
        wild = rng.integers(9, size=4)
        action = np.where(rng.random(4) < 0.5, wild, march(obs, 4))
        before = env.state
        obs, reward, terminated, _, info = env.step(action)
        assert reward == pytest.approx(sum(info["metrics"].values()))
        assert set(info["metrics"]) == set(env.metric_names)
        yield env, before, obs, reward
        if terminated:
            return


def in_the_way(state: State, points: np.ndarray, above: int, grown: float) -> bool:
    """Whether any of `points` [N, 2] is in an obstacle higher than `above`, grown by `grown`."""
    return any(
        height > above and (np.abs(points - centre) < half + grown).all(-1).any()
        for centre, half, height in zip(*state.boxes, strict=True)
    )


@quick
@given(seeds)
def test_units_stay_in_the_arena_and_out_of_obstacles(seed: int) -> None:
    for env, _, _, _ in missions(seed):
        state = env.state
        for unit in np.flatnonzero(state.present):
            place = state.position[unit]
            assert place.min() >= UNIT_RADIUS
            assert place.max() <= 80 - UNIT_RADIUS
            above = int(state.altitude[unit])
            assert not in_the_way(state, place[None], above, UNIT_RADIUS - 1e-4)


@quick
@given(seeds)
def test_who_is_seen_is_in_range_in_view_and_not_behind_anything(seed: int) -> None:
    for env, _, _, _ in missions(seed, ticks=12):
        rules, state = env.rules, env.state
        a = rules.attackers
        for d, i in np.argwhere(np.ones((rules.defenders, a))):
            way = state.position[i] - state.position[a + d]
            distance = float(np.linalg.norm(way))
            ahead = float(HEADING[state.heading[a + d]] @ way)
            points = state.position[a + d] + np.linspace(0, 1, 300)[:, None] * way
            above = int(state.altitude[i])
            nearly = {
                slack: state.active[a + d]
                and state.alive[i]
                and distance <= rules.sight_range[a + d] + slack
                and ahead >= rules.sight_cos[a + d] * distance - slack
                and not in_the_way(state, points, above, -slack)
                for slack in (-0.3, 0.01)
            }
            if state.sees_attacker[d, i]:
                assert nearly[0.01]
            elif nearly[-0.3]:
                pytest.fail(f"defender {d} overlooks attacker {i}")


@quick
@given(seeds)
def test_cooldowns_and_stuns_run_down_one_by_one(seed: int) -> None:
    for env, before, _, _ in missions(seed):
        for name, full in (("tag_wait", env.rules.tag_cooldown), ("stun", env.rules.stun)):
            was, now = getattr(before, name), getattr(env.state, name)
            fresh = now != np.maximum(was - 1, 0)
            assert (now[fresh] == full[fresh]).all()
            assert (was[fresh] == 0).all()
        still = env.state.stun > 0
        assert (env.state.position[still] == before.position[still]).all()


@quick
@given(seeds)
def test_who_is_absent_carries_nothing(seed: int) -> None:
    for env, _, vector, _ in missions(seed):
        state, a = env.state, env.rules.attackers
        absent = ~state.present
        for values in (state.position, state.heading, state.throttle, state.altitude, state.stun):
            assert not values[absent].any()
        assert not state.sees_attacker[absent[a:]].any()
        assert not state.sees_attacker[:, absent[:a]].any()
        assert not state.sees_defender[:, absent[a:]].any()
        rows = vector[: a * PER_ATTACKER].reshape(a, PER_ATTACKER)
        assert not rows[~state.alive[:a]].any()
        gone = state.boxes.height == 0
        assert not state.boxes.centre[gone].any()


@quick
@given(seeds)
def test_the_same_seed_and_actions_give_the_same_bits(seed: int) -> None:
    once, again = ([(s, v, r) for _, s, v, r in missions(seed, ticks=15)] for _ in range(2))
    for (state, vector, reward), (state_2, vector_2, reward_2) in zip(once, again, strict=True):
        assert reward == reward_2
        assert vector.tobytes() == vector_2.tobytes()
        assert [np.asarray(x).tobytes() for x in flat(state)] == [
            np.asarray(x).tobytes() for x in flat(state_2)
        ]


def flat(state: State) -> list[np.ndarray]:
    return [*state._replace(boxes=None)[:10], *state.boxes, *state[11:]]  # type: ignore[arg-type]


@quick
@given(seeds)
def test_a_tick_leaves_its_input_alone_and_keeps_every_shape_and_type(seed: int) -> None:
    env = MissionEnv(CROWDED)
    env.reset(seed=seed)
    state, rng = env.state, np.random.default_rng(seed)
    assert state is not None
    kinds = [(np.shape(x), np.asarray(x).dtype) for x in flat(state)]
    assert {kind.name for _, kind in kinds} == {"int32", "float32", "bool"}
    for _ in range(20):
        for values in flat(state):
            if isinstance(values, np.ndarray):
                values.setflags(write=False)
        state = step(env.rules, state, rng.integers(9, size=4), rng.random(8, np.float32)).state
        assert [(np.shape(x), np.asarray(x).dtype) for x in flat(state)] == kinds


def test_a_commander_that_marches_wins_and_one_that_flails_does_not() -> None:
    wins = {"march": 0, "flail": 0}
    for name in wins:
        env = MissionEnv()
        env.action_space.seed(0)
        for seed in range(6):
            obs, _ = env.reset(seed=seed)
            ended = False
            while not ended:
                action = march(obs, 4) if name == "march" else env.action_space.sample()
                obs, _, terminated, truncated, info = env.step(action)
                ended = terminated or truncated
            wins[name] += info["is_success"]
    assert wins["march"] >= 4
    assert wins["flail"] <= 1
