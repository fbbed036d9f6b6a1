"""Pools for environments that step on the device."""

from __future__ import annotations

import dataclasses
import warnings

import torch

from stoker.config.schema import Config
from stoker.envs.registry import is_device_vector
from stoker.errors import ConfigError, WrongPoolError
from stoker.pools.on_device import DevicePool
from stoker.pools.tensor import TensorPool, describe_tensor_env
from stoker.pools.tensor_check import check_tensor_env
from stoker.pools.vector_on_device import DeviceVectorPool
from stoker.train.crowding import check_crowd
from stoker.train.overlap import Decision
from stoker.train.sizes import check_fit, with_n_envs
from stoker.types import DeviceVectorEnv, EnvSpec, TensorEnv

_AGREE = (
    "For as many as n_envs says, let what makes it take num_envs without a default; or set n_envs "
    "to what it has."
)


def open_on_device(
    made: TensorEnv | DeviceVectorEnv, name: str, config: Config, device: torch.device
) -> tuple[DevicePool, Config, list[Decision]]:
    """The pool, the config with the number of environments there really are, and why."""
    _check_settings(config, name)
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, pool="tensor"))
    if is_device_vector(made):
        pool = DeviceVectorPool(made, name, device)
        config = with_n_envs(config, pool.n_envs, _AGREE)
        check_fit(config, pool.spec, device, elsewhere=False)
        why = f"{pool.n_envs:,} environments that live on the device and step there by themselves"
        return pool, config, [Decision("pool", "on the device", why)]
    spec = describe_tensor_env(name, made)
    breaks = _check_tensors(made, spec, device, config.env.check_bounds)
    check_crowd(made, config, spec, device)  # first, as it names the largest population that fits
    check_fit(config, spec, device, elsewhere=False)
    n_envs = config.env.n_envs * config.run.population
    tensors = TensorPool(made, spec, n_envs, device, capturable=not breaks)
    why = f"a tensor environment: {n_envs:,} step at once where the network is"
    return tensors, config, [Decision("pool", "tensor", why)]


def own_pool(
    made: TensorEnv | DeviceVectorEnv, spec: EnvSpec, n_envs: int, device: torch.device
) -> DevicePool:
    """A pool to evaluate in, of about `n_envs` environments like those that were trained on."""
    if is_device_vector(made):
        return DeviceVectorPool(made, spec.name, device)
    return TensorPool(made, spec, n_envs, device)


def _check_settings(config: Config, name: str) -> None:
    if config.env.pool not in ("auto", "tensor"):
        raise WrongPoolError(
            f"pool is {config.env.pool}, and {name} is a tensor environment: it runs on the device "
            "in the tensor pool. Leave the pool to auto."
        )
    if config.env.collect in ("overlap", "interleave"):
        raise ConfigError(
            f"collect is {config.env.collect}, and environments that are tensors share the device "
            "with the network: there is nothing to overlap with. Leave it to auto."
        )


def _check_tensors(
    env: TensorEnv, spec: EnvSpec, device: torch.device, check_bounds: bool
) -> list[str]:
    """Refuse what would give wrong results; warn of what makes it slow, and give it back."""
    found = check_tensor_env(env, spec, device, check_bounds)
    if found.wrong:
        raise ConfigError([f"{spec.name}: {problem}" for problem in found.wrong])
    for problem in found.breaks:
        warnings.warn(f"{spec.name} cannot be captured: {problem}", stacklevel=2)
    return found.breaks
