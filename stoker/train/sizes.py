"""Sizes: shared among the environments there are, and held against the memory and the cores."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import NamedTuple

import numpy as np
import torch

from stoker.config.check import divisors, find_problems, largest_divisor
from stoker.config.presets import PRESETS, largest_that_fits
from stoker.config.schema import Config, DQNSettings
from stoker.errors import ConfigError
from stoker.pools.rows import Rows
from stoker.train import devices
from stoker.train.policies import bare_policy, check_actions
from stoker.types import EnvSpec

_FEWEST_STEPS = 8
"""Of an environment in a rollout that is shared among many."""
_UNEVEN = 1.5
"""How many times the mean an environment may contribute to a rollout, where each goes freely."""

_MOST_OF_DEVICE = 0.8
"""The share of the free memory that a replay may fill before its observations go to the host."""
_WORKER_BYTES = 40 << 20
"""Of a worker process before it makes environments (measured: 33 MiB, a third of them its own)."""
_FIXED_BYTES = 5 * 4 + 8 + 3
"""Of a row: two log-probabilities, two values and the reward; the version; three flags."""


def may_overlap(config: Config, elsewhere: bool) -> bool:
    """Whether collecting may overlap; left to itself, only where environments step elsewhere."""
    return config.env.collect == "overlap" or (config.env.collect == "auto" and elsewhere)


def may_interleave(config: Config, device: torch.device) -> bool:
    """Whether updates could be made by the thread that waits for environments, while it waits."""
    on_host = config.learning.algo == "dqn" and device.type == "cpu"
    return on_host and config.env.pool in ("auto", "process")


def capacity(config: Config) -> int:
    """Steps that one environment may have in a rollout, where each goes freely."""
    return math.ceil(_UNEVEN * config.learning.n_steps)


def with_in_flight(config: Config, wanted: int) -> Config:
    """`config` with its rollout shared among as many environments as are to be in flight."""
    total = config.total_batch
    asked = config.env.in_flight
    in_flight = wanted if asked else largest_divisor(total, min(wanted, total // _FEWEST_STEPS))
    if total % in_flight:
        larger = [d for d in divisors(total) if d > in_flight][:1]
        near = " and ".join(map(str, [largest_divisor(total, in_flight), *larger]))
        raise ConfigError(
            f"in_flight is {in_flight}, and a rollout of {config.env.n_envs} x "
            f"{config.learning.n_steps} = {total} rows cannot be shared among as many: nearest are "
            f"{near}."
        )
    env = dataclasses.replace(config.env, n_envs=in_flight, in_flight=in_flight)
    learning = dataclasses.replace(config.learning, n_steps=total // in_flight)
    return _checked(dataclasses.replace(config, env=env, learning=learning))


_MANY = "Give a class or a function that makes environments to have as many as you like."


def with_n_envs(config: Config, n_envs: int, remedy: str = _MANY) -> Config:
    """`config` for the environments that were handed over, with a minibatch that divides."""
    if n_envs == config.env.n_envs:
        return config
    total = n_envs * config.learning.n_steps
    divides = config.learning.algo == "ppo"
    size = largest_divisor(total, config.minibatch) if divides else config.minibatch
    warnings.warn(
        f"The environment given counts as {n_envs}, not {config.env.n_envs}, so a rollout has "
        f"{n_envs} x {config.learning.n_steps} = {total} rows, in minibatches of {size}. "
        f"{remedy}",
        stacklevel=2,
    )
    env = dataclasses.replace(config.env, n_envs=n_envs)
    learning = dataclasses.replace(config.learning, batch_size=size)
    return _checked(dataclasses.replace(config, env=env, learning=learning))


def _checked(config: Config) -> Config:
    """`config`, unless its replay is too small for the environments that there are now."""
    found = [line for line in find_problems(config) if line.startswith("buffer_size is ")]
    if found:
        raise ConfigError(found)
    return config


def rollout_size(spec: EnvSpec, n_steps: int, n_envs: int) -> int:
    """Bytes that a storage with room for `n_steps` of each environment takes on the device."""
    leaves = spec.observation.values()
    observed = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    acted = spec.action.width * np.dtype(spec.action.stored_dtype).itemsize + spec.mask_width
    return (n_steps + 1) * n_envs * (observed + acted + _FIXED_BYTES) + n_envs * (observed + 4)


class MemoryNeed(NamedTuple):
    """Bytes that a run will take, about, and what there is."""

    device: str
    rollouts: int
    network: int
    """Weights, gradients and the optimiser's two moments."""
    minibatch: int
    """What an update keeps of the rows that go through the network at once."""
    free: int
    workers: int
    """On the host: worker processes, without what environments allocate; and what they share."""
    host_free: int
    replay: int = 0
    """On the device, where DQN learns."""
    spilled: int = 0
    """Of the replay's observations, where the device is too small for them: on the host."""

    @property
    def total(self) -> int:
        """On the device."""
        return self.rollouts + self.network + self.minibatch + self.replay

    @property
    def arithmetic(self) -> str:
        replay = f"replay {as_size(self.replay)}, " if self.replay else ""
        spilled = f"; {as_size(self.spilled)} of it are on the host" if self.spilled else ""
        return (
            f"{replay}rollout {as_size(self.rollouts)}, network and optimiser "
            f"{as_size(self.network)}, minibatch {as_size(self.minibatch)}; {as_size(self.free)} "
            f"are free{spilled}"
        )


def as_size(count: int) -> str:
    """Bytes in a unit that suits them."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def memory_need(
    config: Config, spec: EnvSpec, device: torch.device, elsewhere: bool | None = None
) -> MemoryNeed:
    """Before anything is made; `elsewhere` says that environments may step in other processes.

    Left out, it is known, since the pool has been chosen.
    """
    elsewhere = config.env.in_workers if elsewhere is None else elsewhere
    overlaps = may_overlap(config, elsewhere)
    rows = capacity(config) if overlaps and elsewhere else config.learning.n_steps
    agents = config.run.population
    rollouts = rollout_size(spec, rows, agents * config.env.n_envs) * (2 if overlaps else 1)
    workers = config.env.n_workers * _WORKER_BYTES + Rows.size(spec, config.env.n_envs)
    need = MemoryNeed(
        device.type,
        rollouts,
        agents * 4 * 4 * count_parameters(config, spec),
        agents * 8 * config.rows_at_once * _units(config),
        devices.free_memory(device),
        workers if config.env.in_processes else 0,
        devices.free_memory(torch.device("cpu")),
    )
    return _with_replay(need, config, spec)


def _units(config: Config) -> int:
    """Of the hidden layers of both networks that an update trains or asks."""
    return sum(config.network.network_arch) + sum(config.network.critic_sizes)


def _with_replay(need: MemoryNeed, config: Config, spec: EnvSpec) -> MemoryNeed:
    if not isinstance(config.learning, DQNSettings):
        return need
    seen, rest = replay_size(spec, config.learning.buffer_size)
    if need.device == "cpu" or need.total + seen + rest <= _MOST_OF_DEVICE * need.free:
        return need._replace(replay=seen + rest)
    return need._replace(replay=rest, spilled=seen)


def replay_size(spec: EnvSpec, capacity: int) -> tuple[int, int]:
    """Bytes of a replay: of observations, and of the rest, which is always on the device."""
    leaves = spec.observation.values()
    seen = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    row = spec.action.width * 8 + spec.mask_width + 4 + 1 + 3 * 4 + 5  # the tree: 4 and a little
    return capacity * seen, capacity * row


def check_fit(config: Config, spec: EnvSpec, device: torch.device, elsewhere: bool) -> None:
    """Before anything is made: refuse what cannot fit, warn of what only just does.

    `elsewhere` says that environments may be stepped in other processes.
    """
    check_actions(config, spec)
    need = memory_need(config, spec, device, elsewhere)
    cores = devices.usable_cores()
    fits = largest_that_fits(cores)
    needs = f"This run needs about {as_size(need.total)} on the {need.device} ({need.arithmetic})"
    on_policy = config.learning.algo == "ppo"
    remedy = f", or --preset {fits}" if on_policy else ", such as a smaller buffer_size"
    # On a GPU minibatches can be had in parts.
    least = need.total if device.type == "cpu" else need.total - need.minibatch
    if least > need.free:
        raise ConfigError(f"{needs}. Use smaller sizes{remedy}.")
    if need.spilled > need.host_free:
        raise ConfigError(f"{needs}, more than the host has free. Use a smaller buffer_size.")
    if need.total > 0.8 * need.free:
        warnings.warn(f"{needs}; smaller sizes{remedy} would fit well.", stacklevel=2)
    for name, row in PRESETS.items():
        sizes = (row.n_envs, row.n_steps)
        if (
            on_policy
            and config.env.pool != "ray"  # which has cores of its own
            and sizes == (config.env.n_envs, config.learning.n_steps)
            and row.cores > cores
        ):
            warnings.warn(
                f"{row.n_envs} x {row.n_steps} steps (the preset {name}) is made for {row.cores} "
                f"cores and this machine has {cores}: environments will wait for each other. "
                f"--preset {fits} fits.",
                stacklevel=2,
            )


def count_parameters(config: Config, spec: EnvSpec) -> int:
    """How many numbers a network has."""
    with torch.device("meta"):  # sizes without memory
        network = dataclasses.replace(config.network, ortho_init=False)
        policy = bare_policy(spec, dataclasses.replace(config, network=network))
    return sum(parameter.numel() for parameter in policy.parameters())
