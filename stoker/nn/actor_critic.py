"""The actor-critic: observations to actions and values."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stoker.config.schema import NetworkSettings
from stoker.nn.encoders import Encoder
from stoker.nn.heads import make_head
from stoker.nn.observing import ObservingPolicy
from stoker.types import DeviceObs, EnvSpec, PolicyOutput


class Evaluation(NamedTuple):
    """What the loss needs of a policy, [B] each."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class ActorCritic(ObservingPolicy):
    """Encoder, head and value; one trunk each or one for both. Implements `types.Policy`."""

    def __init__(self, spec: EnvSpec, settings: NetworkSettings, normalize_obs: bool) -> None:
        super().__init__(spec, normalize_obs)
        leaves, sizes = spec.observation, settings.network_arch
        self.leaves, self.activation = leaves, settings.activation
        self.actor = Encoder(leaves, sizes, settings.activation)
        judged = settings.critic_sizes
        self.critic = (
            self.actor if settings.shared_trunk else Encoder(leaves, judged, settings.activation)
        )
        self.head = make_head(spec.action, settings.log_std_init)
        self.decide = nn.Linear(sizes[-1], self.head.raw_width)
        self.judge = nn.Linear(judged[-1], 1)
        self._shared = settings.shared_trunk
        self._keep_moments(spec)
        if settings.ortho_init:
            self._initialise()

    def _initialise(self) -> None:
        """Orthogonal weights and zero biases, but for the trunks' first layers, as torch made them.

        A tanh network without biases is an odd function: f(-x) = -f(x). It begins with no feature
        in which one input weighs another, such as braking upright but pumping when hanging, and a
        policy may never find one. Near-uniform first actions.
        """
        gains: dict[nn.Module, float] = {self.decide: 0.01, self.judge: 1.0}
        first = (self.actor.trunk[0], self.critic.trunk[0])
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)) and module not in first:
                gain = gains.get(module, math.sqrt(2))
                nn.init.orthogonal_(module.weight, gain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def _raw_and_value(self, obs: DeviceObs) -> tuple[Tensor, Tensor]:
        obs = self.normalised(obs)
        features = self.actor(obs)
        value_features = features if self._shared else self.critic(obs)
        return self.decide(features), self.judge(value_features).squeeze(-1)

    def forward(self, obs: DeviceObs, mask: Tensor | None, action: Tensor) -> Evaluation:
        """Judge actions already taken: the loss's view of the policy."""
        raw, value = self._raw_and_value(obs)
        log_prob, entropy = self.head.measure(raw, mask, action)
        return Evaluation(log_prob, entropy, value)

    def draw_noise(self, rows: int) -> Tensor:
        return self.head.draw_noise(rows, self.generator)

    @torch.no_grad()
    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        return self.decided(self.decide(self.actor(self.normalised(obs))), action_mask, noise)

    def decided(self, raw: Tensor, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        """Actions drawn from the distributions that `raw` [n, raw_width] stands for."""
        return PolicyOutput(*self.head.sample(raw, action_mask, noise))

    @torch.no_grad()
    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor:
        return self.head.greedy(self.decide(self.actor(self.normalised(obs))), action_mask)

    @torch.no_grad()
    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """V(obs) and the log-probability of `action`, [n] each."""
        now = self(obs, action_mask, action)
        return now.value, now.log_prob

    @torch.no_grad()
    def value(self, obs: DeviceObs) -> Tensor:
        return self.judge(self.critic(self.normalised(obs))).squeeze(-1)
