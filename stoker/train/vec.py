"""Stoker's pools for other trainers: as a Gymnasium vector environment, and for SB3.

    envs = make_vec("CartPole-v1", 64)
    model = stable_baselines3.PPO("MlpPolicy", make_sb3_vec("CartPole-v1", 64))

This file imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import gymnasium

from stoker.config.schema import FaultSettings
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError
from stoker.pools.as_gymnasium import PoolVectorEnv
from stoker.pools.awaited import as_blocking, is_async
from stoker.pools.choose import Probe, choose, probe, usable_cores
from stoker.pools.direct import DirectPool
from stoker.pools.open import open_pool
from stoker.pools.spaces import describe

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

MakeOne = Callable[[], gymnasium.Env[Any, Any]]
PoolKind = Literal["auto", "process", "inline", "io", "ray"]

LIKE_OTHERS = FaultSettings(max_faults=0, check_bounds=False)
"""Errors are raised, not mended, and bounds not checked: as other vector environments do."""


def make_vec(
    env: str | MakeOne | Sequence[MakeOne],
    n_envs: int | None = None,
    *,
    pool: PoolKind = "auto",
    n_workers: int = 0,
    autoreset_mode: str = "SameStep",
    copy: bool = True,
    env_kwargs: Mapping[str, Any] | None = None,
    faults: FaultSettings = LIKE_OTHERS,
) -> PoolVectorEnv:
    """`n_envs` environments as a `gymnasium.vector.VectorEnv`.

    `env` is what `stoker train --env` takes, a function that makes an environment, or a list of
    such functions, one each. `n_workers` 0 is one a core. `autoreset_mode` is one of Gymnasium's:
    "SameStep", "NextStep" or "Disabled". With `faults=FaultSettings(max_faults=10)`, environments
    and workers that fail are renewed instead of ending the program.
    """
    opened, trial = open_envs(env, n_envs, pool, n_workers, env_kwargs, faults)
    return PoolVectorEnv(opened, trial, autoreset_mode, copy)


def make_sb3_vec(
    env: str | MakeOne | Sequence[MakeOne],
    n_envs: int | None = None,
    *,
    pool: PoolKind = "auto",
    n_workers: int = 0,
    monitor: bool = True,
    env_kwargs: Mapping[str, Any] | None = None,
    faults: FaultSettings = LIKE_OTHERS,
) -> VecEnv:
    """`n_envs` environments as a `VecEnv` of Stable-Baselines3; see `make_vec`.

    With `monitor`, episodes are counted by a `VecMonitor` around it, which costs workers nothing.
    """
    from stoker.pools.as_sb3 import PoolVecEnv, monitored

    opened, trial = open_envs(env, n_envs, pool, n_workers, env_kwargs, faults)
    envs = PoolVecEnv(opened, trial)
    return monitored(envs) if monitor else envs


def open_envs(
    env: str | MakeOne | Sequence[MakeOne],
    n_envs: int | None = None,
    kind: PoolKind = "auto",
    n_workers: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    faults: FaultSettings = LIKE_OTHERS,
) -> tuple[DirectPool, gymnasium.Env[Any, Any]]:
    """The pool for an adapter, and the environment that was tried, closed."""
    if kind not in get_args(PoolKind):
        raise ConfigError(f"pool is {kind!r}; it must be one of {', '.join(get_args(PoolKind))}.")
    for name, value, least in (("n_envs", n_envs, 1), ("n_workers", n_workers, 0)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number, {least} or more.")
    if isinstance(env, str) or callable(env):
        makers = [EnvFactory(env, dict(env_kwargs or {}))] * (n_envs or 1)
    else:
        makers = [EnvFactory(one, dict(env_kwargs or {})) for one in env]
    if n_envs not in (None, len(makers)) or not makers:
        raise ConfigError(
            f"n_envs is {n_envs}, and env is a list of {len(makers)} functions; give one function "
            "for each environment, or leave n_envs out."
        )
    trial = as_blocking(makers[0]())
    try:
        spaces = trial.observation_space, trial.action_space
        spec = describe(makers[0].name, *spaces, {})  # masks and metrics travel in the infos
        found = Probe(spec, math.nan, math.nan, is_async(trial))
        if kind == "auto":
            found = probe(makers[0].name, trial)
    finally:
        trial.close()
    choice = choose(found, len(makers), usable_cores(), n_workers, kind)
    unchecked = [maker.unchecked() for maker in makers]
    opened, _ = open_pool(unchecked, spec, len(makers), choice, faults, keep_infos=True)
    return opened, trial
