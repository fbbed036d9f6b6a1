"""PPO in JAX with everything in one jitted program: environments, rollout, advantages, updates.

CartPole has the rules of `stoker.envs.tensor.cart_pole`, and PPO does what ours does: actor and
critic apart, tanh, orthogonal weights, generalised advantages that go on from the value of what a
truncated episode saw last, minibatches shuffled every epoch, each with its own normalised
advantages, gradients clipped by their norm, Adam. Several agents are one more axis (`vmap`).
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others are on the GPU, too

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.nn.initializers import orthogonal

from bench.peers.child import Stretches, Task, main

_GRAVITY, _FORCE, _STEP_S = 9.8, 10.0, 0.02
_POLE_MASS, _MASS, _HALF_LENGTH = 0.1, 1.1, 0.5
_FARTHEST, _STEEPEST, _LONGEST = 2.4, 12 * 2 * math.pi / 360, 500

_GAMMA, _LAMBDA, _CLIP, _VALUE_WEIGHT = 0.99, 0.95, 0.2, 0.5
_MOST_GRADIENT = 0.5
_WINDOW = 100  # episodes, as the others average them
_ADAM_MEAN, _ADAM_SQUARE, _ADAM_EPS = 0.9, 0.999, 1e-5

Weights = dict[str, list[dict[str, Array]]]


class Envs(NamedTuple):
    """Where CartPoles stand."""

    motion: Array  # [N, 4]
    age: Array  # [N]


class Learner(NamedTuple):
    """What an iteration changes."""

    weights: Weights
    mean: Weights
    square: Weights
    updates: Array
    envs: Envs
    key: Array
    ended: Array  # episodes of this round
    lived: Array  # steps of those, all together


class Rows(NamedTuple):
    """Steps of a rollout, [T, N, ...], or of a minibatch, [B, ...]."""

    obs: Array
    action: Array
    log_prob: Array
    final_obs: Array
    terminated: Array
    over: Array
    age: Array


class Judged(NamedTuple):
    """What is learned from, [B, ...]."""

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array


def fresh(key: Array, n: int) -> Envs:
    """CartPoles that begin: nearly upright, nearly at rest."""
    motion = jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05)
    return Envs(motion, jnp.zeros(n, jnp.int32))


def step(envs: Envs, action: Array) -> tuple[Envs, Array, Array]:
    """Where the actions lead to, who has fallen, and whose time is up."""
    _, speed, angle, turning = envs.motion.T
    force = jnp.where(action == 1, _FORCE, -_FORCE)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    push = (force + _POLE_MASS * _HALF_LENGTH * turning**2 * sine) / _MASS
    bending = (_GRAVITY * sine - cosine * push) / (
        _HALF_LENGTH * (4 / 3 - _POLE_MASS * cosine**2 / _MASS)
    )
    thrust = push - _POLE_MASS * _HALF_LENGTH * bending * cosine / _MASS
    change = jnp.stack((speed, thrust, turning, bending), 1)
    motion, age = envs.motion + _STEP_S * change, envs.age + 1
    fallen = (jnp.abs(motion[:, 0]) > _FARTHEST) | (jnp.abs(motion[:, 2]) > _STEEPEST)
    return Envs(motion, age), fallen, (age >= _LONGEST) & ~fallen


def initial(key: Array, n: int, arch: tuple[int, ...]) -> Learner:
    """Untrained."""
    actor, critic, place, key = jax.random.split(key, 4)
    weights = {"actor": _layers(actor, arch, 2, 0.01), "critic": _layers(critic, arch, 1, 1.0)}
    mean, square = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    nothing = jnp.zeros((), jnp.int32)
    return Learner(weights, mean, square, nothing, fresh(place, n), key, nothing, nothing)


def _layers(key: Array, arch: tuple[int, ...], outputs: int, last: float) -> list[dict[str, Array]]:
    sizes = list(pairwise((4, *arch, outputs)))
    gains = [math.sqrt(2.0)] * len(arch) + [last]
    keys = jax.random.split(key, len(sizes))
    return [
        {"weight": orthogonal(gain)(one, size), "bias": jnp.zeros(size[1])}
        for one, size, gain in zip(keys, sizes, gains, strict=True)
    ]


def iterate(learner: Learner, _: None, *, task: Task, dtype: Any) -> tuple[Learner, None]:
    """Collect a rollout and learn from it."""
    n, steps = task.envs, task.steps
    key, collecting, shuffling = jax.random.split(learner.key, 3)
    act = partial(_act, learner.weights, n, dtype)
    envs, rows = lax.scan(act, learner.envs, jax.random.split(collecting, steps))
    judged = _judge(learner.weights["critic"], envs.motion, rows, dtype)
    flat = jax.tree.map(lambda value: value.reshape(n * steps, *value.shape[2:]), judged)

    def epoch(held: Learner, key: Array) -> tuple[Learner, None]:
        order = jax.random.permutation(key, n * steps)
        batches = jax.tree.map(lambda v: v[order].reshape(task.minibatches, -1, *v.shape[1:]), flat)
        return lax.scan(partial(_update, lr=task.lr, dtype=dtype), held, batches)[0], None

    ended, lived = learner.ended + rows.over.sum(), learner.lived + (rows.over * rows.age).sum()
    learner = learner._replace(envs=envs, key=key, ended=ended, lived=lived)
    return lax.scan(epoch, learner, jax.random.split(shuffling, task.epochs))


def _act(weights: Weights, n: int, dtype: Any, envs: Envs, key: Array) -> tuple[Envs, Rows]:
    choosing, beginning = jax.random.split(key)
    logits = _through(weights["actor"], envs.motion, dtype)
    action = jax.random.categorical(choosing, logits)
    led_to, fallen, late = step(envs, action)
    over, anew = fallen | late, fresh(beginning, n)
    after = Envs(
        jnp.where(over[:, None], anew.motion, led_to.motion), jnp.where(over, 0, led_to.age)
    )
    log_prob = _log_prob(logits, action)
    return after, Rows(envs.motion, action, log_prob, led_to.motion, fallen, over, led_to.age)


def _judge(critic: list[dict[str, Array]], last: Array, rows: Rows, dtype: Any) -> Judged:
    """Generalised advantages; every reward is 1."""
    value = _through(critic, rows.obs, dtype)[..., 0]
    onwards = jnp.concatenate((value[1:], _through(critic, last, dtype)[None, :, 0]))
    at_the_end = _through(critic, rows.final_obs, dtype)[..., 0]
    following = jnp.where(rows.over, at_the_end, onwards) * ~rows.terminated
    surprise = 1.0 + _GAMMA * following - value

    def back(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        one, over = row
        advantage = one + _GAMMA * _LAMBDA * ~over * later
        return advantage, advantage

    _, advantage = lax.scan(back, jnp.zeros_like(last[:, 0]), (surprise, rows.over), reverse=True)
    return Judged(rows.obs, rows.action, rows.log_prob, advantage, advantage + value)


def _update(learner: Learner, batch: Judged, lr: float, dtype: Any) -> tuple[Learner, None]:
    """One step of Adam."""
    gradient = jax.grad(_loss)(learner.weights, batch, dtype)
    norm = jnp.sqrt(sum(jnp.sum(part**2) for part in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, _MOST_GRADIENT / norm), gradient)
    updates = learner.updates + 1
    mean = _drawn_to(learner.mean, gradient, _ADAM_MEAN)
    square = _drawn_to(learner.square, jax.tree.map(jnp.square, gradient), _ADAM_SQUARE)
    rate = lr / (1 - _ADAM_MEAN**updates)
    scale = 1 / (1 - _ADAM_SQUARE**updates)
    weights = jax.tree.map(
        lambda w, m, s: w - rate * m / (jnp.sqrt(s * scale) + _ADAM_EPS),
        learner.weights,
        mean,
        square,
    )
    return learner._replace(weights=weights, mean=mean, square=square, updates=updates), None


def _drawn_to(held: Any, new: Any, share: float) -> Any:
    return jax.tree.map(lambda old, one: share * old + (1 - share) * one, held, new)


def _loss(weights: Weights, batch: Judged, dtype: Any) -> Array:
    logits = _through(weights["actor"], batch.obs, dtype)
    value = _through(weights["critic"], batch.obs, dtype)[..., 0]
    ratio = jnp.exp(_log_prob(logits, batch.action) - batch.log_prob)
    spread = batch.advantage.std() + 1e-8
    advantage = (batch.advantage - batch.advantage.mean()) / spread
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - _CLIP, 1 + _CLIP) * advantage)
    return _VALUE_WEIGHT * jnp.mean((value - batch.target) ** 2) - gain.mean()


def _through(layers: list[dict[str, Array]], obs: Array, dtype: Any) -> Array:
    *hidden, last = ({name: v.astype(dtype) for name, v in each.items()} for each in layers)
    out = obs.astype(dtype)
    for layer in hidden:
        out = jnp.tanh(out @ layer["weight"] + layer["bias"])
    return (out @ last["weight"] + last["bias"]).astype(jnp.float32)


def _log_prob(logits: Array, action: Array) -> Array:
    every = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(every, action[..., None], axis=-1)[..., 0]


def program(task: Task) -> tuple[Learner, Callable[[Learner], Learner]]:
    """Untrained agents, and a round of training as one program."""
    dtype = jnp.bfloat16 if task.precision == "bf16" else jnp.float32
    once = partial(iterate, task=task, dtype=dtype)

    def many(learner: Learner) -> Learner:
        nothing = jnp.zeros_like(learner.ended)
        anew = learner._replace(ended=nothing, lived=nothing)
        return lax.scan(once, anew, None, task.iterations)[0]

    begin = partial(initial, n=task.envs, arch=task.arch)
    key = jax.random.key(task.seed)
    if task.agents == 1:
        return jax.jit(begin)(key), jax.jit(many, donate_argnums=0)
    keys = jax.random.split(key, task.agents)
    return jax.jit(jax.vmap(begin))(keys), jax.jit(jax.vmap(many), donate_argnums=0)


def train(task: Task, stretches: Stretches) -> None:
    assert task.env == "tensor/CartPole-v1", "there is no other environment here"
    if Path("/dev/nvidiactl").exists() and jax.default_backend() == "cpu":
        raise RuntimeError("there is a GPU, and this JAX cannot use it: pip install 'jax[cuda12]'")
    of_float32 = "float32" if task.precision == "fp32" else "tensorfloat32"
    jax.config.update("jax_default_matmul_precision", of_float32)
    learner, many = program(task)

    def once() -> None:
        nonlocal learner
        learner = jax.block_until_ready(many(learner))
        ended = max(int(learner.ended.sum()), 1)
        stretches.told["steps_per_episode"] = round(task.round_steps / ended, 1)

    rounds: deque[tuple[int, int]] = deque()

    def reward() -> float | None:
        """Of the last hundred episodes, and those that ended in the same round as the first."""
        rounds.append((int(learner.lived.sum()), int(learner.ended.sum())))
        while sum(ended for _, ended in rounds) - rounds[0][1] >= _WINDOW:
            rounds.popleft()
        lived, ended = (sum(column) for column in zip(*rounds, strict=True))
        return lived / ended if ended else None

    stretches.reward = reward
    stretches.run(once)


if __name__ == "__main__":
    main(train, "jax", "jaxlib")
