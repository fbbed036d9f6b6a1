"""How many agents fit on a device, before anything is allocated."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import torch

from stoker.config.schema import Config
from stoker.errors import ConfigError
from stoker.kernels import mlp
from stoker.pools.draws import TensorRng, key_of
from stoker.train import devices
from stoker.train.sizes import count_parameters, rollout_size
from stoker.types import EnvSpec, TensorEnv

_WORD, _LONG = 4, 8  # bytes
_KEPT = 3
"""Words of a step besides what the storage counts: value, advantage, scaled reward."""
_DRAWING, _COUNTING, _SHUFFLING = 4, 12, 5
"""Longs of a step that there are at once, while noise is drawn (for each of its numbers, too),
episodes are counted, and, on a CPU, an epoch is shuffled."""
_LAYERS = 3
"""That there are at once of every row, on a CPU, while values are computed."""
_STATES = 4
"""Of an environment, at once, in a step: before, after, fresh, and what is taken of the two."""
_WEIGHTS = 6
"""Words of a parameter: it, Adam's two moments, and copies of these for a checkpoint."""
_MODULES = 1 << 16
"""Bytes of a policy's Python objects, on the host (measured: 60 to 90 thousand)."""


class Need(NamedTuple):
    """Bytes that agents take on their device, at most."""

    rollouts: int
    networks: int
    gradients: int

    @property
    def total(self) -> int:
        return sum(self)


class Yardstick(NamedTuple):
    """What the need of any number of agents follows from."""

    config: Config
    spec: EnvSpec
    device: torch.device
    parameters: int
    state_bytes: int
    """Of one environment."""

    @classmethod
    def of(cls, env: TensorEnv, config: Config, spec: EnvSpec, device: torch.device) -> Yardstick:
        one = torch.zeros(1, dtype=torch.int64, device=device)
        state = env.initial(1, TensorRng(key_of(one), one, one[0]))
        held = sum(part.numel() * part.element_size() for part in state.values())
        return cls(config, spec, device, count_parameters(config, spec), held)

    def need(self, agents: int) -> Need:
        """Of so many agents."""
        config, on_cpu = self.config, self.device.type == "cpu"
        parts = mlp.parts(agents, config.minibatch, self.device)
        gradients = _WORD * parts * self.parameters
        networks = _WEIGHTS * _WORD * self.parameters
        if on_cpu:  # where passes leave layers in memory, and updates what they are made of
            layers = config.minibatch * sum(config.network.network_arch)
            gradients += 4 * _WORD * (layers + self.parameters)
            networks += _MODULES
        copies = 1 if on_cpu else 2  # as what is compiled is tried on a copy of it all
        each = (self._rollout(), networks, gradients)
        return Need(*(copies * agents * part for part in each))

    def _rollout(self) -> int:
        """Of one agent: what is kept, and the most there is besides while it is worked on."""
        config, spec = self.config, self.spec
        n_envs, n_steps, on_cpu = config.env.n_envs, config.ppo.n_steps, self.device.type == "cpu"
        leaves = spec.observation.values()
        observed = sum(prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
        drawn = sum(spec.action.nvec) or spec.action.width
        kept = observed + _WORD * (_KEPT + drawn + len(spec.metric_names))
        at_once = max(
            _LONG * _DRAWING * (1 + drawn),
            _LONG * _COUNTING,
            _WORD * _LAYERS * max(config.network.network_arch) if on_cpu else 0,
            config.ppo.n_epochs * (_LONG * _SHUFFLING if on_cpu else _WORD),
        )
        states = _STATES * n_envs * self.state_bytes
        rows = n_envs * n_steps * (kept + at_once)
        return rollout_size(spec, n_steps, n_envs) + rows + states


def check_crowd(env: TensorEnv, config: Config, spec: EnvSpec, device: torch.device) -> None:
    """Refuse a population that cannot fit, and name the largest that can."""
    agents = config.run.population
    if agents == 1:
        return
    yardstick, free = Yardstick.of(env, config, spec, device), devices.free_memory(device)
    need = yardstick.need(agents)
    if need.total <= free:
        return
    most = free * agents // need.total  # as fewer agents take no less each
    fits = next((k for k in range(most, 0, -1) if yardstick.need(k).total <= free), 0)
    remedy = (
        f"the largest that fits is {fits}. Use --population {fits}, or" if fits else "not one fits;"
    )
    raise ConfigError(
        f"population is {agents}, which needs about {need.total / 2**30:.1f} GiB on the "
        f"{device.type} (rollouts {need.rollouts / 2**30:.1f}, networks and optimisers "
        f"{need.networks / 2**30:.1f}, gradients {need.gradients / 2**30:.1f}), and "
        f"{free / 2**30:.1f} GiB are free: {remedy} use smaller sizes."
    )
