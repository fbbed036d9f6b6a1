"""What single pieces of a job cost, each tried for a moment: stepping, deciding, copying, learning.

They say what limits a job, and how far its rollouts must be shortened to be rehearsed in time;
predictions rest on `tune.rehearsal`, where the pieces work together.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker.config.schema import Config
from stoker.nn.actor_critic import ActorCritic
from stoker.pools.awaited import as_blocking
from stoker.pools.choose import Probe, probe
from stoker.train.by_hand import quickly
from stoker.train.learning import make_learner
from stoker.train.policies import make_actor_critic
from stoker.train.ppo_by_hand import learns_by_hand
from stoker.train.sources import factory_of
from stoker.types import DeviceObs, EnvSpec, Minibatch

_EACH_S = 0.15
_LEAST = 2  # times that each is tried
_ENV_S = 0.5


class Pieces(NamedTuple):
    """Seconds that single pieces take."""

    env: Probe | None
    """A step of one environment; None where all step on the device."""
    inference_at: dict[int, float]
    """Deciding for so many environments at once."""
    update_at: dict[int, float]
    """An update from so many rows, where it is made by hand; else a pass of them through the
    network and back."""
    copy_s: float | None
    """What all environments see, from the host to the GPU; None where there is none."""


def try_pieces(config: Config, spec: EnvSpec, device: torch.device, on_host: bool) -> Pieces:
    """Try each piece of a job; `on_host` says where environments step."""
    policy = make_actor_critic(spec, config, device, config.run.seed)
    n_envs = config.env.n_envs
    widths = sorted({1, n_envs, 2 * n_envs, 4 * n_envs})
    return Pieces(
        _try_env(config, spec) if on_host else None,
        {width: _inference_s(policy, spec, width, device) for width in widths},
        {config.minibatch: try_update(config, spec, device, config.minibatch)},
        _copy_s(spec, n_envs, device) if device.type == "cuda" and on_host else None,
    )


def try_decision(config: Config, spec: EnvSpec, device: torch.device, width: int) -> float:
    """Seconds that deciding for so many at once takes."""
    return _inference_s(
        make_actor_critic(spec, config, device, config.run.seed), spec, width, device
    )


def try_update(config: Config, spec: EnvSpec, device: torch.device, rows: int) -> float:
    """Seconds that learning from so many rows at once takes."""
    policy = make_actor_critic(spec, config, device, config.run.seed)
    learning = dataclasses.replace(config.ppo, batch_size=rows)
    config = dataclasses.replace(config, learning=learning)
    given = (policy, *_rows(spec, rows, device))
    if learns_by_hand(policy, config):
        return _seconds(_update(config, *given), device)
    return _seconds(partial(_pass, *given), device)


def _try_env(config: Config, spec: EnvSpec) -> Probe:
    made = as_blocking(factory_of(config).unchecked()())
    try:
        return probe(spec.name, made, _ENV_S)
    finally:
        made.close()


def _inference_s(policy: ActorCritic, spec: EnvSpec, width: int, device: torch.device) -> float:
    obs, mask, _ = _rows(spec, width, device)
    noise, acting = policy.draw_noise(width), quickly(policy, width)

    def decide() -> None:
        acting.act(obs, mask, noise)

    if device.type != "cuda":
        return _seconds(decide, device)
    decide()  # libraries set themselves up outside of a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may be at work
        decide()
    return _seconds(graph.replay, device)


def _pass(policy: ActorCritic, obs: DeviceObs, mask: Tensor | None, action: Tensor) -> None:
    found = policy(obs, mask, action)
    (found.log_prob.mean() + found.value.mean() + found.entropy.mean()).backward()
    policy.zero_grad()


def _update(
    config: Config, policy: ActorCritic, obs: DeviceObs, mask: Tensor | None, action: Tensor
) -> Callable[[], object]:
    """As a run makes it, but for the KL limit."""
    settings = dataclasses.replace(config.ppo, target_kl=None)
    learner = make_learner(dataclasses.replace(config, learning=settings), action.device, policy)
    number, valid = torch.linspace(-1.0, 1.0, len(action)), torch.ones(len(action)) > 0
    rows = Minibatch(obs, action, mask, number, number, number, number, number, valid)
    return partial(learner.epoch_of(rows), torch.arange(len(action)).unsqueeze(0))


def _copy_s(spec: EnvSpec, n_envs: int, device: torch.device) -> float:
    obs, _, _ = _rows(spec, n_envs, torch.device("cpu"))
    pairs = [(value.pin_memory(), value.to(device)) for value in obs.values()]

    def copy() -> None:
        for pinned, there in pairs:
            there.copy_(pinned, non_blocking=True)

    return _seconds(copy, device)


def _rows(
    spec: EnvSpec, count: int, device: torch.device
) -> tuple[DeviceObs, Tensor | None, Tensor]:
    """Observations, masks and actions of zeros."""
    obs = {
        leaf: torch.from_numpy(np.zeros((count, *of.shape), of.dtype)).to(device)
        for leaf, of in spec.observation.items()
    }
    mask = None
    if spec.has_mask:
        mask = torch.ones(count, spec.mask_width, dtype=torch.bool, device=device)
    action = np.zeros((count, spec.action.width), spec.action.stored_dtype)
    return obs, mask, torch.from_numpy(action).to(device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The middle one of some times."""
    took: list[float] = []
    while len(took) <= _LEAST or sum(took) < _EACH_S:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()  # sync: to time it
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])
