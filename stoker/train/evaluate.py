"""Evaluation: the policy's best guess, on environments and seeds of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from stoker.envs.registry import EnvFactory
from stoker.learn.whole import Whole
from stoker.pools.awaited import as_blocking, is_async
from stoker.pools.base import BasePool
from stoker.pools.choose import closing
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.pools.tensor import TensorPool
from stoker.pools.worker import Waits
from stoker.train.on_device import own_pool
from stoker.types import DeviceObs, DeviceVectorEnv, EnvSpec, HostObs, Policy, TensorEnv

_SEEDS_APART = 1_000_003
"""Added to a run's seed, so that evaluation episodes are not those that were trained on."""
_MOST_ENVS, _MOST_AT_ONCE = 10, 100
_MOST_CUTS = 10
_UNTIL_A_LOOK = 32  # steps on the device


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
    captures: bool = False,
) -> EvalReport:
    """Run `episodes` episodes, or until `wanted` says no. Each environment plays a fixed number of
    them: taking whichever end first would favour short ones. An environment whose episode goes past
    `max_steps`, or that is cut off time and again, plays no more. `pool` is what they were trained
    in: those that wait, or are tensors, step all at once. The steps of tensors are captured as a
    CUDA graph where `captures` says so."""
    wanted_envs = min(episodes, _MOST_AT_ONCE if pool in ("io", "tensor") else _MOST_ENVS)
    with _pool(make_env, spec, wanted_envs, pool, device) as envs:
        tally = _Tally(episodes, envs.n_envs, max_steps)  # there may be more than were wanted
        seed += _SEEDS_APART
        if isinstance(envs, TensorPool):
            envs.begin(seed)
            stretch = Whole(captures)(_Stretch(policy, envs, deterministic), policy.generator)
            _play_tensors(stretch, tally, wanted)
        else:
            _play(policy, envs, tally, seed, device, deterministic, wanted)
    return tally.report()


class _Tally:
    """Whole episodes of n environments, and who plays on."""

    def __init__(self, episodes: int, n_envs: int, max_steps: int) -> None:
        parts = np.array_split(np.arange(episodes), n_envs)
        self._episodes, self._max_steps = episodes, max_steps
        self._quota = np.array([len(part) for part in parts])
        self._returns: list[list[float]] = [[] for _ in parts]
        self._lengths: list[list[int]] = [[] for _ in parts]
        self._total = np.zeros(n_envs)
        self._length, self._cuts = (np.zeros(n_envs, np.int64) for _ in range(2))
        self.playing = np.flatnonzero(self._quota)

    def count(self, reward: np.ndarray, over: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """A step of those who are `playing`; which of them, [n] bool, play on."""
        playing = self.playing
        self._total[playing] += reward
        self._length[playing] += 1
        for env_id in playing[over & valid].tolist():  # what was cut off is played again
            self._returns[env_id].append(float(self._total[env_id]))
            self._lengths[env_id].append(int(self._length[env_id]))
        self._total[playing[over]] = self._length[playing[over]] = 0
        self._cuts[playing[over & ~valid]] += 1
        still = np.array([len(self._returns[i]) < self._quota[i] for i in playing], bool)
        still &= (self._length[playing] < self._max_steps) & (self._cuts[playing] <= _MOST_CUTS)
        self.playing = playing[still]
        return still

    def report(self) -> EvalReport:
        returns, lengths = list(chain(*self._returns)), list(chain(*self._lengths))
        return EvalReport(returns, lengths, self._episodes - len(returns))


def _play(
    policy: Policy,
    envs: BasePool,
    tally: _Tally,
    seed: int,
    device: torch.device,
    deterministic: bool,
    wanted: Callable[[], bool],
) -> None:
    batch = envs.reset(seed)
    still = tally.playing
    while tally.playing.size and wanted():
        obs = {leaf: value[still] for leaf, value in batch.obs.items()}
        mask = None if batch.action_mask is None else batch.action_mask[still]
        envs.send(_act(policy, obs, mask, device, deterministic), tally.playing)
        batch = envs.recv(len(tally.playing))
        still = tally.count(batch.reward, batch.terminated | batch.truncated, batch.valid)


class _Stretch:
    """Some steps of everyone on the device: rewards, and where episodes were over, [T, 2, N]."""

    def __init__(self, policy: Policy, envs: TensorPool, deterministic: bool) -> None:
        self._policy, self._envs, self._deterministic = policy, envs, deterministic
        self._seen = {leaf: value.clone() for leaf, value in envs.obs.items()}

    def __call__(self) -> Tensor:
        steps = []
        for _ in range(_UNTIL_A_LOOK):
            action = _decide(self._policy, self._seen, None, self._deterministic)
            batch = self._envs.advance(action)
            for leaf, value in batch.obs.items():
                self._seen[leaf].copy_(value)
            steps.append(torch.stack((batch.reward, (batch.terminated | batch.truncated).float())))
        return torch.stack(steps)


def _play_tensors(stretch: Callable[[], Tensor], tally: _Tally, wanted: Callable[[], bool]) -> None:
    """All step, a while at a time; of those who play no more nothing is counted."""
    while tally.playing.size and wanted():
        for reward, over in stretch().cpu().numpy():  # sync: a look at how it went
            playing = tally.playing
            tally.count(reward[playing], over[playing] > 0, np.ones(len(playing), bool))


def _pool(
    make_env: EnvFactory, spec: EnvSpec, n_envs: int, pool: str, device: torch.device
) -> BasePool:
    if pool == "tensor":
        made = make_env.make(num_envs=n_envs, device=str(device))
        return own_pool(cast(TensorEnv | DeviceVectorEnv, made), spec, n_envs, device)
    if pool != "io":
        return InlinePool(make_env, spec, n_envs)
    with closing(make_env.name, as_blocking(make_env())) as trial:
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
    return _decide(policy, on_device, allowed, deterministic).cpu().numpy()


def _decide(policy: Policy, obs: DeviceObs, mask: Tensor | None, deterministic: bool) -> Tensor:
    if deterministic:
        return policy.act_greedily(obs, mask)
    rows = len(next(iter(obs.values())))
    return policy.act(obs, mask, policy.draw_noise(rows)).action
