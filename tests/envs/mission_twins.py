"""Missions played in NumPy and written down, to be played again by their tensor twin."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from missions import march
from torch import Tensor

from stoker.envs.mission.env import MissionEnv
from stoker.envs.mission.geometry import Boxes
from stoker.envs.mission.sight import look
from stoker.envs.mission.start import draws_at_start, initial
from stoker.envs.mission.state import FULL_THROTTLE, TOP_ALTITUDE, Rules, State
from stoker.envs.mission.tensor.state import Missions
from stoker.types import TensorState

SCENARIOS: dict[str, dict[str, object]] = {
    "skirmish": {},
    "crowd": {
        "attackers": [1, 5],
        "fliers": 2,
        "defenders": [0, 4],
        "obstacles": [0, 24],
        "arena": 80,
    },
    "fierce": {
        "shield": 1,
        "sight_range": 14,
        "capture_ticks": 4,
        "step_limit": 45,
        "defenders": [3, 6],
        "defender_speed": 4.5,
        "defender_tag_range": 14,
        "defender_tag_angle": 120,
        "defender_stun": 2,
        "patrol_radius": 6,
    },
    "bare": {"attackers": [8, 8], "fliers": 8, "defenders": [0, 0], "obstacles": [0, 0]},
}
"""Among them: wins, losses and time-outs, crowds that vary, and axes that nobody uses."""


class Played(NamedTuple):
    """Ticks of NumPy missions: row by row, what went in and what came out."""

    before: list[State]
    action: np.ndarray  # int64 [n, A]
    uniforms: np.ndarray  # float32 [n, U]
    after: list[State]
    vector: np.ndarray  # float32 [n, vector_size], after the tick
    reward: np.ndarray  # float64 [n]
    terminated: np.ndarray  # bool [n]
    truncated: np.ndarray  # bool [n]
    metrics: np.ndarray  # float64 [n, len(COMPONENTS)]


class Handed:
    """An Rng that hands out uniforms [n, ...] drawn elsewhere, a batch a call."""

    def __init__(self, *batches: np.ndarray) -> None:
        self._batches = [torch.from_numpy(batch) for batch in batches]

    def uniform(self, *tail: int) -> Tensor:
        batch = self._batches.pop(0)
        assert batch.shape[1:] == tail
        return batch

    def normal(self, *tail: int) -> Tensor:
        raise AssertionError("a mission draws uniforms alone")


def drawn(env: MissionEnv, count: int) -> np.ndarray:
    """The uniforms that `env` will draw next."""
    return copy.deepcopy(env.np_random).random(count, np.float32)


def play(scenario: dict[str, object], seeds: Sequence[int]) -> Played:
    """Whole missions under commanders that march, and one time in three do anything at all."""
    env = MissionEnv(scenario)
    a, rows = env.rules.attackers, []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        rng, ended = np.random.default_rng(seed), False
        while not ended:
            wild = rng.random(a) < 1 / 3
            action = np.where(wild, rng.integers(9, size=a), march(obs, a))
            before, uniforms = env.state, drawn(env, env.rules.units)
            obs, reward, terminated, truncated, info = env.step(action)
            metrics = list(info["metrics"].values())
            came = (env.state, obs, reward, terminated, truncated, metrics)
            rows.append((before, action, uniforms, *came))
            ended = terminated or truncated
    columns = [list(column) for column in zip(*rows, strict=True)]
    states = (0, 3)
    return Played(*(c if i in states else np.array(c) for i, c in enumerate(columns)))


def scattered(rules: Rules, n: int) -> list[State]:
    """States that chance would not come to: on a grid in one corner, so that ties are everywhere.

    Units share places, stand in obstacles and at the very edge of the arena, of ranges and of
    angles of view, lie due ahead or as near as one another; what counts down is anywhere.
    """
    rng, states = np.random.default_rng(0), []
    u, a, d, o, s = rules.units, *rules[1:4], rules.scenario

    def on_grid(*shape: int) -> np.ndarray:
        return 1 + 2 * rng.integers(10, size=shape).astype(np.float32)

    def whole(most: int, *shape: int) -> np.ndarray:
        return rng.integers(most + 1, size=shape, dtype=np.int32)

    for _ in range(n):
        height = np.array([0, 1, 3], np.int32)[whole(2, o)]
        state = initial(rules, rng.random(draws_at_start(rules), np.float32))._replace(
            tick=np.int32(rng.integers(s.step_limit)),
            position=on_grid(u, 2),
            heading=6 * whole(7, u),
            throttle=whole(FULL_THROTTLE, u),
            altitude=whole(TOP_ALTITUDE, u) * rules.flier,
            shield=whole(s.shield, u) + (np.arange(u) >= a),
            stun=whole(1, u) * whole(2, u),
            tag_wait=whole(1, u),
            scan_wait=whole(1, a),
            boxes=Boxes(on_grid(o, 2), whole(2, o, 2).astype(np.float32), height),
            zone=on_grid(2),
            zone_radius=np.float32(10),
            captured=np.int32(rng.integers(s.capture_ticks)),
            spotted_at=on_grid(d, 2),
            spotted_age=whole(s.memory, d),
        )
        states.append(look(rules, state))
    return states


def stacked(states: Sequence[State]) -> TensorState:
    """NumPy states as the one of so many tensor missions."""
    flat = [
        {**state._asdict(), **{f"box_{name}": of for name, of in state.boxes._asdict().items()}}
        for state in states
    ]
    return {
        name: torch.from_numpy(np.stack([np.asarray(one[name]) for one in flat]))
        for name in Missions._fields
    }


def differing(found: TensorState, wanted: TensorState) -> list[str]:
    """The names whose tensors are not the same to the bit, in shape and type as well."""
    assert list(found) == list(wanted)
    return [
        name
        for name, of in wanted.items()
        if found[name].dtype != of.dtype or not torch.equal(found[name], of)
    ]
