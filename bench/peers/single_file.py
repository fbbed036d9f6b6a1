"""PPO in one file, by CleanRL's recipe: Gymnasium's vector environments, all else in plain torch.

Written here, since that project is no package. Like its scripts it keeps a rollout on the device,
takes environments a step at a time, shuffles indices on the host, and updates eagerly; it learns
from `terminated or truncated` as one, and normalises advantages by the minibatch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, Envs, network, open_envs, set_up, wait, width_of

_GAMMA, _LAMBDA, _CLIP, _VALUE_WEIGHT, _MOST_GRADIENT = 0.99, 0.95, 0.2, 0.5, 0.5


class Rollout(NamedTuple):
    """[T, N, ...] each."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    over: Tensor
    value: Tensor


class Agent(nn.Module):
    """Actor and critic apart, with orthogonal weights."""

    def __init__(self, envs: Envs, arch: tuple[int, ...]) -> None:
        super().__init__()
        inputs, self._choices = width_of(envs.observation_space), envs.choices
        outputs = sum(self._choices) or width_of(envs.action_space)
        self.actor = _orthogonal(network(inputs, arch, outputs), last=0.01)
        self.critic = _orthogonal(network(inputs, arch, 1), last=1.0)
        self.log_std = None if self._choices else nn.Parameter(torch.zeros(outputs))

    def chooses(self, obs: Tensor) -> Distribution:
        """Over actions [..., A]."""
        found = self.actor(obs)
        if self.log_std is not None:
            return Independent(Normal(found, self.log_std.exp().expand_as(found)), 1)
        assert len(set(self._choices)) == 1, "columns with as many choices each"
        logits = found.unflatten(-1, (len(self._choices), -1))
        return Independent(Categorical(logits=logits), 1)

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs)[..., 0]


def _orthogonal(net: nn.Sequential, last: float) -> nn.Sequential:
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last if layer is layers[-1] else math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    return net


@torch.no_grad()
def collect(agent: Agent, envs: Envs, steps: int) -> Rollout:
    """Act for some steps."""
    rows = []
    for _ in range(steps):
        obs = envs.obs
        chosen = agent.chooses(obs)
        action = chosen.sample()
        led_to = envs.step(action)
        seen = chosen.log_prob(action), led_to.reward, led_to.over.float(), agent.value(obs)
        rows.append((obs, action, *seen))
    return Rollout(*(torch.stack(column) for column in zip(*rows, strict=True)))


@torch.no_grad()
def advantages(rollout: Rollout, last: Tensor) -> Tensor:
    """Generalised, with `last` the values of what is seen after the rollout."""
    found, later, following = torch.zeros_like(rollout.reward), torch.zeros_like(last), last
    for t in reversed(range(len(found))):
        goes_on = 1 - rollout.over[t]
        surprise = rollout.reward[t] + _GAMMA * following * goes_on - rollout.value[t]
        found[t] = later = surprise + _GAMMA * _LAMBDA * goes_on * later
        following = rollout.value[t]
    return found


def loss(agent: Agent, batch: Rollout, advantage: Tensor, target: Tensor) -> Tensor:
    """Of a minibatch."""
    ratio = (agent.chooses(batch.obs).log_prob(batch.action) - batch.log_prob).exp()
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = torch.min(ratio * scaled, ratio.clamp(1 - _CLIP, 1 + _CLIP) * scaled).mean()
    return _VALUE_WEIGHT * (agent.value(batch.obs) - target).square().mean() - gain


def iterate(agent: Agent, optimiser: torch.optim.Optimizer, envs: Envs, task: Task) -> None:
    """Collect a rollout and learn from it."""
    rollout = collect(agent, envs, task.steps)
    with torch.no_grad():
        advantage = advantages(rollout, agent.value(envs.obs))
    flat = Rollout(*(part.flatten(0, 1) for part in rollout))
    target = (advantage + rollout.value).flatten()
    order = np.arange(task.batch)
    for _ in range(task.epochs):
        np.random.shuffle(order)
        for rows in torch.from_numpy(order).split(task.minibatch):
            which = rows.to(DEVICE)
            batch = Rollout(*(part[which] for part in flat))
            optimiser.zero_grad()
            loss(agent, batch, advantage.flatten()[which], target[which]).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), _MOST_GRADIENT)
            optimiser.step()


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    envs = open_envs(task)
    stretches.reward = envs.tally.read
    agent = Agent(envs, task.arch).to(DEVICE)
    optimiser = torch.optim.Adam(agent.parameters(), task.lr, eps=1e-5)

    def once() -> None:
        for _ in range(task.iterations):
            iterate(agent, optimiser, envs, task)
        wait()

    try:
        stretches.run(once)
    finally:
        envs.close()


if __name__ == "__main__":
    main(train, "torch", "gymnasium")
