"""From what was given as an environment to a pool of it: which one, how many, and why."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import gymnasium
import torch
from gymnasium.vector import VectorEnv

from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory, is_device_vector
from stoker.errors import ConfigError, WrongPoolError
from stoker.pools.awaited import as_blocking
from stoker.pools.base import BasePool
from stoker.pools.choose import PoolKind, Probe, choose, closing, probe
from stoker.pools.envpool import EnvPoolPool, is_envpool
from stoker.pools.inline import InlinePool
from stoker.pools.open import open_pool
from stoker.pools.spaces import describe_env
from stoker.pools.vector import VectorPool
from stoker.train import devices
from stoker.train.on_device import open_on_device
from stoker.train.overlap import Decision
from stoker.train.sizes import check_fit, may_interleave, with_in_flight, with_n_envs
from stoker.types import DeviceVectorEnv, EnvSpec

EnvSource = EnvFactory | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any] | DeviceVectorEnv

_VECTOR_ONLY = ("num_envs", "vectorization_mode", "vector_kwargs", "max_episode_steps")


def factory_of(config: Config) -> EnvFactory:
    """How to make the environment that a config names."""
    if config.env.env.startswith("<"):
        raise ConfigError(
            f"This run's environment was given in Python as {config.env.env}, so its name does not "
            f"say how to make it. Go on in Python, with {config.learning.algo.upper()}.load(path, "
            "env=...)."
        )
    return EnvFactory(config.env.env, config.env.env_kwargs)


def make_pool(
    config: Config, source: EnvSource, device: torch.device
) -> tuple[BasePool, Config, list[Decision]]:
    """The pool, the config with the number of environments there really are, and why."""
    if is_device_vector(source):
        return open_on_device(source, config.env.env, config, device)
    if isinstance(source, VectorEnv):
        kind, adapter = ("envpool", EnvPoolPool) if is_envpool(source) else ("vector", VectorPool)
        adapted = adapter(source, config.env.env, config.env.check_bounds)
        why = f"a vector environment was given, {source.num_envs} wide"
        config = with_n_envs(config, adapted.n_envs)
        check_fit(config, adapted.spec, device, elsewhere=False)
        return adapted, config, [Decision("pool", kind, why)]
    if isinstance(source, gymnasium.Env):
        given = source
        found = probe(config.env.env, given)
        why = "an environment object was given, and there is one of it"
        config = with_n_envs(config, 1)
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, pool="inline"))
        check_fit(config, found.spec, device, elsewhere=False)
        pool = InlinePool(lambda: given, found.spec, 1, config.env)
        return pool, config, [Decision("pool", "inline", why)]
    made = source.make(num_envs=config.env.n_envs, device=str(device))
    if not isinstance(made, gymnasium.Env) or is_device_vector(made):
        return open_on_device(made, source.name, config, device)
    asked = config.env.pool
    if asked == "tensor":
        raise WrongPoolError(
            f"pool is tensor, and {source.name} is an ordinary environment: it steps on the CPU. "
            "Leave the pool to auto, or port it to tensors (docs/tensor-environments.md)."
        )
    # Only to choose is it worth knowing what a step takes.
    chooses = asked == "auto" or _may_take_turns(config, device)
    with closing(source.name, as_blocking(made)) as trial:
        found = probe(source.name, trial, 0.1 if chooses else 0.0)
    cores = devices.usable_cores()
    if asked == "io" or (asked == "auto" and found.waits):
        config = with_in_flight(config, config.env.in_flight or found.in_flight(cores))
    check_fit(config, found.spec, device, elsewhere=asked != "inline")
    by_turns = _may_take_turns(config, device) and not found.uneven
    return _pool_of_many(config, source, found, asked, by_turns)


def _may_take_turns(config: Config, device: torch.device) -> bool:
    return config.env.collect == "auto" and may_interleave(config, device)


def _pool_of_many(
    config: Config,
    source: EnvFactory,
    found: Probe,
    asked: PoolKind | Literal["auto"],
    by_turns: bool,
) -> tuple[BasePool, Config, list[Decision]]:
    n_envs, cores, env = config.env.n_envs, devices.usable_cores(), config.env
    choice = choose(found, n_envs, cores, env.n_workers, asked)
    unchecked = source.unchecked()  # the one that was tried was checked
    threads = config.compute.torch_threads
    pool, choice = open_pool(unchecked, found.spec, n_envs, choice, env, learner_cores=threads)
    # Kept in the run: timing it again might choose otherwise, and bits would differ.
    env = dataclasses.replace(env, pool=choice.pool, n_workers=choice.n_workers)
    if by_turns and choice.pool == "process":
        env = dataclasses.replace(env, collect="interleave")
    config = dataclasses.replace(config, env=env)
    return pool, config, [Decision("pool", choice.described, choice.reason)]


def own_copies(source: EnvSource, spec: EnvSpec) -> EnvFactory | None:
    """How to make environments for evaluation alone; None if the one given cannot be made again."""
    if isinstance(source, EnvFactory):
        return source
    if is_device_vector(source):  # many simulators are there once in a process
        return None
    try:
        made_by = source.spec  # which looks through wrappers, and may refuse to
        if made_by is None:
            return None
        known = {k: v for k, v in made_by.kwargs.items() if k not in _VECTOR_ONLY}
        factory = EnvFactory(gymnasium.make, {"id": dataclasses.replace(made_by, kwargs=known)})
        copy = factory()
        try:
            _, info = copy.reset(seed=0)
            same = describe_env(spec.name, copy, info)
        finally:
            copy.close()
    except Exception:
        return None
    return factory if (same.observation, same.action) == (spec.observation, spec.action) else None
