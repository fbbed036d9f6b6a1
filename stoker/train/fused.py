"""Agents whose networks are small enough for the kernels: what these need, put together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stoker.algos.returns import ReturnScaler
from stoker.config.schema import Config
from stoker.kernels import mlp, shuffle
from stoker.kernels.mlp import Net
from stoker.learn.fused import FusedLearner
from stoker.nn.actor_critic import ActorCritic
from stoker.nn.crowd import Crowd
from stoker.nn.heads import BernoulliHead, CategoricalHead, Head
from stoker.pools.draws import TensorRng, key_of
from stoker.storage.on_device import DeviceStorage
from stoker.types import PLAIN, EnvSpec

_SEEDS_APART = 1_000_003


def why_not(spec: EnvSpec, config: Config, policy: ActorCritic) -> str | None:
    """Why the kernels cannot serve this policy; None if they can."""
    leaf = spec.observation.get(PLAIN)
    if leaf is None or leaf.kind != "vector" or leaf.dtype != "float32":
        return "what is seen is not one vector of float32"
    if not mlp.fits(net_of(spec, config, policy)):
        return "the network is too large for one"
    if not shuffle.usable(config.total_batch):
        return f"{config.total_batch} rows cannot be shuffled without a sort"
    return None


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
    in any crowd.
    """

    def __init__(
        self,
        crowd: Crowd,
        net: Net,
        storage: DeviceStorage,
        config: Config,
        scaler: ReturnScaler | None,
        seeds: Tensor,
    ) -> None:
        self._crowd, self._net, self._storage = crowd, net, storage
        self._precision = config.compute.precision
        moments = crowd.moments and (crowd.moments.centre, crowd.moments.scale)
        self._moments = moments or None
        agents, self._head = len(seeds), crowd.policies[0].head
        self._number = torch.arange(storage.n_envs, device=seeds.device) % (
            storage.n_envs // agents
        )
        self._keys = key_of(seeds + 1).repeat_interleave(storage.n_envs // agents)
        self.draw = self._draw
        """How noise is drawn: something compiled may take its place."""

        def scaled(reward: Tensor, ended: Tensor) -> Tensor:
            assert scaler is not None
            return scaler(reward, ended, torch.ones_like(ended))

        self.learner = FusedLearner(
            net,
            crowd.flat,
            self._moments,
            None if scaler is None else scaled,
            storage,
            config.ppo,
            config.minibatch,
            seeds + 2,
            self._precision,
        )

    def noise(self, counts: Tensor) -> Tensor:
        drawn = self.draw(self._keys, self._number, counts)
        return drawn.unflatten(0, (len(counts), -1))

    def _draw(self, keys: Tensor, number: Tensor, counts: Tensor) -> Tensor:
        steps, envs = len(counts), len(keys)
        rng = TensorRng(keys.repeat(steps), number.repeat(steps), counts.repeat_interleave(envs))
        return self._head.noise_of(rng)

    def decide(self, t: int, noise: Tensor) -> None:
        kept = self._storage.rollout
        mlp.act(
            self._net,
            self._crowd.flat,
            self._moments,
            self._storage.plain()[t],
            noise,
            kept.action[t],
            kept.behaviour_log_prob[t],
            self._precision,
        )

    def lesson(self) -> object:
        """Learn from the rollout; then take what was seen in it into the statistics."""
        report = self.learner.learn()
        self._crowd.take_in(self._storage.plain()[:-1])
        return report

    def reseed(self) -> None:
        """Draw other noise, and shuffle otherwise."""
        self._keys.add_(_SEEDS_APART)
        self.learner.reseed(_SEEDS_APART)
