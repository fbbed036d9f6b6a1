"""Agents for whom kernels act and learn: whether these can serve them, and what these need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stoker.algos.returns import ReturnScaler
from stoker.config.schema import Config
from stoker.kernels import mlp, shuffle, wide
from stoker.kernels.mlp import Net
from stoker.learn.fused import FusedLearner, Passes, Scalars
from stoker.nn.actor_critic import ActorCritic
from stoker.nn.crowd import Crowd
from stoker.nn.heads import BernoulliHead, CategoricalHead, Head
from stoker.pools.draws import TensorRng, key_of
from stoker.storage.on_device import DeviceStorage
from stoker.types import PLAIN, EnvSpec, LearnReport, Way

SHUFFLED_APART = 2
"""Added to a run's seed for its shuffling."""
_NOISE_APART = 1 << 40
"""Added to seeds, so that no agent's noise is made of what another's environments draw from."""


def why_not(spec: EnvSpec, config: Config, policy: ActorCritic) -> str | None:
    """Why the kernels cannot serve this policy; None if they can."""
    leaf = spec.observation.get(PLAIN)
    if leaf is None or leaf.kind != "vector" or leaf.dtype != "float32":
        return "what is seen is not one vector of float32"
    if config.rows_at_once < config.minibatch:
        return f"micro_batch is {config.rows_at_once:,}, and they take minibatches whole"
    if config.network.critic_sizes != config.network.network_arch:
        return "the critic has other layers than the actor"
    net = net_of(spec, config, policy)
    if not mlp.fits(net) and config.run.population > 1:
        return "for many agents at once, the network is too large; --network-arch 64,64 is not"
    if passes_for(net) is None:
        return "the network is too large for them"
    if not shuffle.usable(config.total_batch):
        return f"{config.total_batch} rows cannot be shuffled without a sort"
    return None


def passes_for(net: Net) -> Passes | None:
    """The kernels that take this network, those in one piece before those layer by layer."""
    return next((passes for passes in (mlp, wide) if passes.fits(net)), None)


def net_of(spec: EnvSpec, config: Config, policy: ActorCritic) -> Net:
    """What the kernels must know of a policy."""
    return mlp.layout(
        [(name, value.shape) for name, value in policy.named_parameters()],
        math.prod(spec.observation[PLAIN].shape),
        tuple(config.network.network_arch),
        config.network.activation,
        _head_of(policy.head),
        tuple(spec.action.nvec),
        policy.head.raw_width,
        config.network.shared_trunk,
    )


def _head_of(head: Head) -> str:
    if isinstance(head, CategoricalHead):
        return "categorical"
    return "bernoulli" if isinstance(head, BernoulliHead) else "gaussian"


class Fused:
    """Acts and learns for a crowd of agents, in kernels. Implements `collect.on_device.Acting`.

    Its noise follows from each agent's seed and the number of the step, so an agent gets the same
    in any crowd. `number` is that of the last step of all.
    """

    def __init__(
        self,
        policies: Sequence[ActorCritic],
        config: Config,
        spec: EnvSpec,
        storage: DeviceStorage,
        scaler: ReturnScaler | None,
        scalars: Scalars,
        number: Tensor,
        generator: torch.Generator,
        way: Way,
    ) -> None:
        self.crowd = crowd = Crowd(policies, way)
        self._net, self._storage = net_of(spec, config, policies[0]), storage
        passes = passes_for(self._net)
        assert passes is not None, "`why_not` says so before"
        self._passes = passes
        self._precision = config.compute.precision
        moments = crowd.moments and (crowd.moments.centre, crowd.moments.scale)
        self._moments = moments or None
        agents, device = len(policies), storage.device
        seeds = config.run.seed + torch.arange(agents, device=device)
        share = storage.n_envs // agents
        self._numbers = torch.arange(storage.n_envs, device=device) % share
        self._seeds = (seeds + _NOISE_APART).repeat_interleave(share)
        self._keys = key_of(self._seeds)
        self._way = way
        self.learner = FusedLearner(
            passes,
            self._net,
            crowd.flat,
            crowd.named,
            self._moments,
            None if scaler is None else _scaling(scaler),
            storage,
            config.ppo,
            scalars,
            config.minibatch,
            seeds + SHUFFLED_APART,
            number,
            generator,
            self._precision,
            way,
        )
        if scaler is not None:
            scaler.way = way

    def noise(self, counts: Tensor) -> Tensor:
        head = self.crowd.policies[0].head
        return self._way(_drawn)(head, self._keys, self._numbers, counts)

    def decide(self, t: int, noise: Tensor) -> None:
        kept = self._storage.rollout
        self._passes.act(
            self._net,
            self.crowd.flat,
            self._moments,
            self._storage.plain()[t],
            noise,
            kept.action[t],
            kept.behaviour_log_prob[t],
            self._precision,
        )

    @torch.no_grad()
    def lesson(self) -> LearnReport:
        """Learn from the rollout; then take what was seen in it into the statistics."""
        report = self.learner.learn()
        self.crowd.take_in(self._storage.plain()[:-1])
        return report

    def reseed(self, apart: int) -> None:
        """Draw noise and shuffle as if the seeds were so much larger than they are."""
        self._keys.copy_(key_of(self._seeds + apart))
        self.learner.reseed(apart)


def _scaling(scaler: ReturnScaler) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda reward, ended: scaler(reward, ended, torch.ones_like(ended))


def _drawn(head: Head, keys: Tensor, numbers: Tensor, counts: Tensor) -> Tensor:
    """Noise [T, N, ...] for keys and numbers [N] of environments, and numbers [T] of steps."""
    steps, envs = len(counts), len(keys)
    rng = TensorRng(keys.repeat(steps), numbers.repeat(steps), counts.repeat_interleave(envs))
    return head.noise_of(rng).unflatten(0, (steps, envs))
