"""Who can act and learn by hand, on a CPU: policies whose networks are a few plain layers.

Few rows go through them at once there, and most of the time is that of starting many little
operations. Here is how they act; `q_by_hand` and `ppo_by_hand` have how they learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from stoker.kernels.descent import flushing_denormals
from stoker.kernels.plain_heads import PlainBernoulli, PlainCategorical, PlainGaussian, PlainHead
from stoker.kernels.plain_layers import ACTIVATIONS, PlainLayers
from stoker.nn.actor_critic import ActorCritic
from stoker.nn.encoders import Encoder
from stoker.nn.heads import CategoricalHead, GaussianHead, Head
from stoker.nn.normalise import CLIP
from stoker.nn.q_network import QNetwork
from stoker.train.policies import TrainedPolicy
from stoker.types import PLAIN, DeviceObs, Policy, PolicyOutput

JUDGED = 256
"""Rows that a network judges at once: more leave the cache."""
MOST = 2**20
"""Numbers of observations that are taken for updates at once."""


def is_plain(policy: TrainedPolicy) -> bool:
    """Whether the network is no more than layers over one vector."""
    (name, leaf), *others = policy.leaves.items()
    one_vector = name == PLAIN and not others and leaf.kind == "vector"
    more = isinstance(policy, QNetwork) and (policy.dueling or policy.noise_width)
    return one_vector and policy.activation in ACTIVATIONS and not more


def as_rows(obs: DeviceObs) -> Tensor:
    """What is seen, where that is one vector, as [n, inputs]."""
    return obs[PLAIN].reshape(len(obs[PLAIN]), -1)


def layers_of(policy: TrainedPolicy) -> list[nn.Linear]:
    """Those that decide."""
    if isinstance(policy, QNetwork):
        return [*_linear(policy.encoder), policy.judge]
    return [*_linear(policy.actor), policy.decide]


def judging_layers_of(policy: ActorCritic) -> list[nn.Linear]:
    """Those that say what a state is worth."""
    return [*_linear(policy.critic), policy.judge]


def _linear(encoder: Encoder) -> list[nn.Linear]:
    return [module for module in encoder.trunk if isinstance(module, nn.Linear)]


def plain_head(head: Head) -> PlainHead:
    """The same distribution by hand; it reads and writes parameters where they are now."""
    if isinstance(head, CategoricalHead):
        return PlainCategorical(head.columns.place.numpy(), head.columns.padding.numpy())
    if isinstance(head, GaussianHead):
        slope = head.log_std.grad
        return PlainGaussian(head.log_std.data, None if slope is None else slope.data)
    return PlainBernoulli()


@contextmanager
def by_hand() -> Iterator[None]:
    """What updates are made in."""
    with torch.inference_mode(), flushing_denormals(), np.errstate(all="ignore"):
        yield


def quick_to_act(policy: TrainedPolicy, rows: int) -> Policy:
    """`policy`, which mostly acts for so many at once; quicker, where that is possible."""
    on_host = next(policy.parameters()).device.type == "cpu"
    return ActingByHand(policy, rows) if on_host and is_plain(policy) else policy


class ActingByHand:
    """A policy that is plain and acts without modules; as to all else it is what it was."""

    def __init__(self, policy: TrainedPolicy, rows: int) -> None:
        self.policy, self._rows_at_once = policy, min(rows, JUDGED)
        self._weights = [p for layer in layers_of(policy) for p in (layer.weight, layer.bias)]
        if isinstance(policy, ActorCritic):
            self._weights += policy.head.parameters()
        self._moments = policy.plain_moments
        self._at: list[int] = []
        self.act_greedily, self.appraise = policy.act_greedily, policy.appraise
        self.draw_noise, self.value = policy.draw_noise, policy.value

    @property
    def generator(self) -> torch.Generator:
        return self.policy.generator

    @torch.inference_mode()
    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        at = [weight.data_ptr() for weight in self._weights]
        if at != self._at:  # at first, and when somebody has put other tensors in their place
            layers, activation = layers_of(self.policy), self.policy.activation
            self._at, self._decide = at, PlainLayers(layers, activation, self._rows_at_once)
            self._head = self._plain_head()
        with np.errstate(all="ignore"):  # as torch does
            raw = self._decide.judge(self._scaled(as_rows(obs)))
            if self._head is None:
                return self.policy.decided(raw, action_mask, noise)
            mask = None if action_mask is None else action_mask.numpy()
            sampled = self._head.sample(raw.numpy(), mask, noise.numpy())
        return PolicyOutput(*map(torch.from_numpy, sampled))

    def _plain_head(self) -> PlainHead | None:
        return plain_head(self.policy.head) if isinstance(self.policy, ActorCritic) else None

    def _scaled(self, rows: Tensor) -> Tensor:
        """As `RunningMoments.standardise` has it."""
        if self._moments is None:
            return rows
        seen = (rows.numpy() - self._moments.centre.numpy()) * self._moments.scale.numpy()
        return torch.from_numpy(np.minimum(np.maximum(seen, -CLIP), CLIP))
