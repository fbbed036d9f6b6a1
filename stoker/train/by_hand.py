"""Who can act and learn by hand, on a CPU: policies whose networks are a few plain layers.

Few rows go through them at once there, and most of the time is that of starting many little
operations. Here is how they act; `q_by_hand` and `ppo_by_hand` have how they learn.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stoker.kernels.plain_layers import ACTIVATIONS, PlainLayers
from stoker.nn.q_network import QNetwork
from stoker.train.policies import TrainedPolicy
from stoker.types import PLAIN, DeviceObs, Policy, PolicyOutput

JUDGED = 256
"""Rows that a network judges at once: more leave the cache."""


def is_plain(policy: TrainedPolicy) -> bool:
    """Whether the network is no more than layers over one vector."""
    (name, leaf), *others = policy.leaves.items()
    one_vector = name == PLAIN and not others and leaf.kind == "vector"
    more = isinstance(policy, QNetwork) and (policy.dueling or policy.noise_width)
    return one_vector and policy.activation in ACTIVATIONS and not more


def layers_of(policy: TrainedPolicy) -> list[nn.Linear]:
    """Those that decide."""
    encoder, last = (
        (policy.encoder, policy.judge)
        if isinstance(policy, QNetwork)
        else (policy.actor, policy.decide)
    )
    return [*(module for module in encoder.trunk if isinstance(module, nn.Linear)), last]


def quick_to_act(policy: TrainedPolicy, rows: int) -> Policy:
    """`policy`, which mostly acts for so many at once; quicker, where that is possible."""
    on_host = next(policy.parameters()).device.type == "cpu"
    return ActingByHand(policy, rows) if on_host and is_plain(policy) else policy


class ActingByHand:
    """A policy that is plain and acts without modules; as to all else it is what it was."""

    def __init__(self, policy: TrainedPolicy, rows: int) -> None:
        self.policy, self._rows_at_once = policy, min(rows, JUDGED)
        self._weights = [p for layer in layers_of(policy) for p in (layer.weight, layer.bias)]
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
        seen = self.policy.normalised(obs)[PLAIN].flatten(1)
        return self.policy.decided(self._decide.judge(seen), action_mask, noise)
