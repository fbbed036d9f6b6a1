"""Tensor environments beside the environments of Gymnasium that they are to equal.

The state of each is one row of numbers, `motion`, in the order that Gymnasium's `state` has. The
tensor programs compute in the precision they are given: in float64, as Gymnasium does, they have to
come to the same float32 observations, and in float32 near them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stoker.envs.tensor.acrobot import Acrobot
from stoker.envs.tensor.cart_pole import CartPole
from stoker.envs.tensor.mountain_car import MountainCar, MountainCarContinuous
from stoker.envs.tensor.pendulum import Pendulum
from stoker.pools.draws import TensorRng, key_of
from stoker.types import TensorEnv, TensorState

WIDER = 1.5  # how far actions go beyond their space


@dataclass(frozen=True)
class Twin:
    """A tensor environment, the one that it is to equal, and where to look for differences."""

    name: str
    """Gymnasium's."""
    make: Callable[..., TensorEnv]
    widest: tuple[float, ...]
    """By number of `motion`, how far from 0 states are drawn: farther than an episode gets."""
    edges: tuple[tuple[float, ...], ...]
    """By number of `motion`, values at which something changes, or from which a step gets there."""
    start: tuple[tuple[float, float], ...]
    """By number of `motion`, the range of first states."""
    near: float
    """How far float32 may be from float64 after a step, beside numbers about 1."""


_STEEPEST, _UPPER, _LOWER = 12 * 2 * math.pi / 360, 4 * math.pi, 9 * math.pi
_TURNS = (0.0, math.pi / 2, math.pi, -math.pi, 2 * math.pi)
_VALLEY: dict[str, Any] = {
    "widest": (1.5, 0.1),
    "edges": ((-1.2, -1.15, 0.43, 0.45, 0.5, 0.6), (-0.07, -0.05, 0.0, 0.05, 0.07)),
    "start": ((-0.6, -0.4), (0.0, 0.0)),
    "near": 1e-6,
}
TWINS = (
    Twin(
        name="CartPole-v1",
        make=CartPole,
        widest=(3.0, 5.0, 0.5, 5.0),
        edges=(
            (-2.4, 0.0, 2.4),
            (-1.0, 0.0, 1.0),
            (-_STEEPEST, 0.0, _STEEPEST),
            (-1.0, 0.0, 1.0),
        ),
        start=((-0.05, 0.05),) * 4,
        near=2e-6,
    ),
    Twin(
        name="Acrobot-v1",
        make=Acrobot,
        widest=(math.pi, math.pi, 1.1 * _UPPER, 1.1 * _LOWER),
        edges=(_TURNS, _TURNS, (-_UPPER, 0.0, _UPPER), (-_LOWER, 0.0, _LOWER)),
        start=((-0.1, 0.1),) * 4,
        near=1e-2,  # at full speed a step is too long for its method, which swells what is rounded
    ),
    Twin(name="MountainCar-v0", make=MountainCar, **_VALLEY),
    Twin(name="MountainCarContinuous-v0", make=MountainCarContinuous, **_VALLEY),
    Twin(
        name="Pendulum-v1",
        make=Pendulum,
        widest=(80.0, 9.0),  # 200 steps at full speed turn it by 80
        edges=((*_TURNS, 3 * math.pi), (-8.0, 0.0, 8.0)),
        start=((-math.pi, math.pi), (-1.0, 1.0)),
        near=2e-5,
    ),
)


class Outcome(NamedTuple):
    """What came of a step of n environments."""

    obs: np.ndarray  # float32 [n, ...]
    reward: np.ndarray  # float64 [n]
    terminated: np.ndarray  # bool [n]


def draws(n: int, seed: int = 0, first: int = 0, device: str = "cpu") -> TensorRng:
    """Random numbers for n environments, from the `first` on."""
    keys = key_of(torch.full((n,), seed, device=device))
    ids = torch.arange(first, first + n, device=device)
    return TensorRng(keys, ids, torch.zeros_like(keys[0]))


def state_of(motion: Tensor, age: int = 0) -> TensorState:
    return {"motion": motion, "age": torch.full((len(motion),), age)}


def some_motions(twin: Twin, n: int, seed: int, off_edge: float) -> np.ndarray:
    """States from all over; one number in three is at an edge, or up to `off_edge` beside it."""
    rng = np.random.default_rng(seed)
    anywhere = rng.uniform(-1, 1, (n, len(twin.widest))) * twin.widest
    at_edge = np.stack([rng.choice(values, n) for values in twin.edges], 1)
    beside = at_edge + off_edge * rng.uniform(-1, 1, at_edge.shape)
    return np.where(rng.random(anywhere.shape) < 1 / 3, beside, anywhere)


def some_actions(space: Any, n: int, seed: int = 0) -> np.ndarray:
    """Any of a Discrete space; of a Box, also what is beyond it."""
    rng = np.random.default_rng(seed)
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=n)
    return rng.uniform(WIDER * space.low, WIDER * space.high, (n, *space.shape))


def step_gymnasium(twin: Twin, motions: np.ndarray, actions: np.ndarray) -> Outcome:
    """One step from each of the states."""
    env: Any = gymnasium.make(twin.name).unwrapped
    steps = []
    for motion, action in zip(motions, actions, strict=True):
        env.reset()
        env.state = motion.astype(np.float64)
        steps.append(env.step(action)[:3])
    obs, reward, terminated = zip(*steps, strict=True)
    return Outcome(np.stack(obs), np.array(reward, np.float64), np.array(terminated))


def step_tensors(
    twin: Twin, motions: np.ndarray, actions: np.ndarray, dtype: torch.dtype
) -> Outcome:
    """The same at once, computed in `dtype`."""
    env = twin.make()
    action = torch.from_numpy(actions)
    action = action.to(dtype) if action.is_floating_point() else action
    state = state_of(torch.from_numpy(motions).to(dtype))
    step = env.step(state, action, draws(len(motions)))
    obs = env.observe(step.state)
    assert isinstance(obs, Tensor)
    return Outcome(obs.float().numpy(), step.reward.double().numpy(), step.terminated.numpy())
