"""Evaluation: the policy's best guess, on environments and seeds of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, cast

import numpy as np
import torch

from stoker.envs.registry import EnvFactory
from stoker.pools.awaited import as_blocking, is_async
from stoker.pools.base import BasePool
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.pools.worker import Waits
from stoker.train.on_device import own_pool
from stoker.types import DeviceVectorEnv, EnvSpec, HostObs, Policy, TensorEnv

_SEEDS_APART = 1_000_003
"""Added to a run's seed, so that evaluation episodes are not those that were trained on."""
_MOST_ENVS, _MOST_AT_ONCE = 10, 100
_MOST_CUTS = 10


class EvalReport(NamedTuple):
    """Returns and lengths of whole episodes, in the order of their environments."""

    returns: list[float]
    lengths: list[int]
    unfinished: int  # episodes that were too long, or not played because of one

    @property
    def mean_reward(self) -> float:
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @property
    def std_reward(self) -> float:
        return float(np.std(self.returns)) if self.returns else float("nan")

    def metrics(self) -> dict[str, float]:
        if not self.returns:
            return {}
        return {
            "eval/mean_reward": self.mean_reward,
            "eval/std_reward": self.std_reward,
            "eval/mean_ep_length": float(np.mean(self.lengths)),
        }


def evaluate(
    policy: Policy,
    make_env: EnvFactory,
    spec: EnvSpec,
    device: torch.device,
    *,
    episodes: int,
    seed: int,
    max_steps: int,
    deterministic: bool = True,
    pool: str = "inline",
    wanted: Callable[[], bool] = lambda: True,
) -> EvalReport:
    """Run `episodes` episodes, or until `wanted` says no. Each environment plays a fixed number of
    them: taking whichever end first would favour short ones. An environment whose episode goes past
    `max_steps`, or that is cut off time and again, plays no more. `pool` is what they were trained
    in: those that wait, or are tensors, step all at once."""
    wanted_envs = min(episodes, _MOST_AT_ONCE if pool in ("io", "tensor") else _MOST_ENVS)
    with _pool(make_env, spec, wanted_envs, pool, device) as envs:
        n_envs = envs.n_envs  # which may be more, where they come as many as they are
        quota = np.array([len(part) for part in np.array_split(np.arange(episodes), n_envs)])
        returns: list[list[float]] = [[] for _ in range(n_envs)]
        lengths: list[list[int]] = [[] for _ in range(n_envs)]
        total, length, cuts = np.zeros(n_envs), *(np.zeros(n_envs, np.int64) for _ in range(2))
        batch = envs.reset(seed + _SEEDS_APART)
        playing = np.flatnonzero(quota)
        obs = {leaf: value[playing] for leaf, value in batch.obs.items()}
        mask = None if batch.action_mask is None else batch.action_mask[playing]
        while playing.size and wanted():
            action = _act(policy, obs, mask, device, deterministic)
            envs.send(action, playing)
            batch = envs.recv(len(playing))
            total[playing] += batch.reward
            length[playing] += 1
            over = batch.terminated | batch.truncated
            for env_id in playing[over & batch.valid].tolist():  # what was cut off is played again
                returns[env_id].append(float(total[env_id]))
                lengths[env_id].append(int(length[env_id]))
            total[playing[over]] = length[playing[over]] = 0
            cuts[playing[over & ~batch.valid]] += 1
            still = np.array([len(returns[i]) < quota[i] for i in playing], bool)
            still &= (length[playing] < max_steps) & (cuts[playing] <= _MOST_CUTS)
            playing = playing[still]
            obs = {leaf: value[still] for leaf, value in batch.obs.items()}
            mask = None if batch.action_mask is None else batch.action_mask[still]
    done = sum(map(len, returns))
    return EvalReport(list(chain(*returns)), list(chain(*lengths)), episodes - done)


def _pool(
    make_env: EnvFactory, spec: EnvSpec, n_envs: int, pool: str, device: torch.device
) -> BasePool:
    if pool == "tensor":
        made = make_env.make(num_envs=n_envs, device=str(device))
        return own_pool(cast(TensorEnv | DeviceVectorEnv, made), spec, n_envs, device)
    if pool != "io":
        return InlinePool(make_env, spec, n_envs)
    trial = as_blocking(make_env())
    trial.close()
    how: Waits = "as coroutines" if is_async(trial) else "in threads"
    return ProcessPool(make_env.unchecked(), spec, n_envs, 1, waits=how)


def _act(
    policy: Policy,
    obs: HostObs,
    mask: np.ndarray | None,
    device: torch.device,
    deterministic: bool,
) -> np.ndarray:
    on_device = {leaf: torch.from_numpy(value).to(device) for leaf, value in obs.items()}
    allowed = None if mask is None else torch.from_numpy(mask).to(device)
    if deterministic:
        return policy.act_greedily(on_device, allowed).cpu().numpy()
    rows = len(next(iter(obs.values())))
    return policy.act(on_device, allowed, policy.draw_noise(rows)).action.cpu().numpy()
