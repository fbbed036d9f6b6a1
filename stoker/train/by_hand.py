"""Who can act and learn by hand, on a CPU: policies whose networks are a few plain layers.

Few rows go through them at once there, and most of the time is that of starting many little
operations. Here is how they act; `q_by_hand` and `ppo_by_hand` have how they learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

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

T = TypeVar("T")

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


def quickly(policy: TrainedPolicy, rows: int) -> Policy:
    """`policy`, which mostly acts for so many at once; quicker, where that is possible."""
    on_host = next(policy.parameters()).device.type == "cpu"
    return PolicyByHand(policy, rows) if on_host and is_plain(policy) else policy


class PolicyByHand:
    """A policy that is plain, and acts and judges without modules; else it is what it was."""

    def __init__(self, policy: TrainedPolicy, rows: int) -> None:
        activation = policy.activation
        self.policy, self._moments = policy, policy.plain_moments
        self._decide = _layers(layers_of(policy), activation, min(rows, JUDGED))
        self._head: _OfNow[PlainHead] | None = None
        self.act_greedily, self.draw_noise = policy.act_greedily, policy.draw_noise
        if isinstance(policy, ActorCritic):
            head = policy.head
            self._head = _OfNow(head.parameters(), lambda: plain_head(head))
            self._judge = _layers(judging_layers_of(policy), activation, JUDGED)

    @property
    def generator(self) -> torch.Generator:
        return self.policy.generator

    @torch.inference_mode()
    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        with np.errstate(all="ignore"):  # as torch does
            raw = self._decide().judge(self._scaled(as_rows(obs)))
            if self._head is None:
                return self.policy.decided(raw, action_mask, noise)
            sampled = self._head().sample(raw.numpy(), _as_array(action_mask), noise.numpy())
        return PolicyOutput(*map(torch.from_numpy, sampled))

    @torch.inference_mode()
    def value(self, obs: DeviceObs) -> Tensor:
        if self._head is None or len(obs[PLAIN]) < JUDGED:  # as many go through it anyway
            return self.policy.value(obs)
        with np.errstate(all="ignore"):
            return self._judge().judge(self._scaled(as_rows(obs))).squeeze(-1)

    @torch.inference_mode()
    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self._head is None or len(obs[PLAIN]) < JUDGED:
            return self.policy.appraise(obs, action_mask, action)
        with np.errstate(all="ignore"):
            rows, head = self._scaled(as_rows(obs)), self._head()
            raw, done = self._decide().judge(rows).numpy(), head.laid_out(action.numpy())
            log_prob, _ = head.measure(raw, _as_array(action_mask), done)
            return self._judge().judge(rows).squeeze(-1), torch.from_numpy(log_prob)

    def _scaled(self, rows: Tensor) -> Tensor:
        """As `RunningMoments.standardise` has it."""
        if self._moments is None:
            return rows
        seen = (rows.numpy() - self._moments.centre.numpy()) * self._moments.scale.numpy()
        return torch.from_numpy(np.minimum(np.maximum(seen, -CLIP), CLIP))


class _OfNow(Generic[T]):
    """What is built of weights as they lie now: somebody may have put others in their place."""

    def __init__(self, weights: Iterable[Tensor], build: Callable[[], T]) -> None:
        self._weights, self._build = list(weights), build
        self._at: list[int] | None = None

    def __call__(self) -> T:
        at = [weight.data_ptr() for weight in self._weights]
        if at != self._at:
            self._at, self._built = at, self._build()
        return self._built


def _layers(layers: list[nn.Linear], activation: str, rows: int) -> _OfNow[PlainLayers]:
    weights = (weight for layer in layers for weight in (layer.weight, layer.bias))
    return _OfNow(weights, partial(PlainLayers, layers, activation, rows))


def _as_array(mask: Tensor | None) -> np.ndarray | None:
    return None if mask is None else mask.numpy()
