"""Updates of DQN on a CPU, where the network is a few plain layers.

Minibatches are small there, and most of an update's time is that of starting some eighty little
operations. So what does not depend on the updates before is worked out for many updates at once:
rows, what the target network says of them, and what is reported. Thirty are left for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from stoker.algos import dqn
from stoker.kernels.descent import FlatDescent
from stoker.kernels.plain_layers import ACTIVATIONS, PlainLayers
from stoker.nn.q_network import QNetwork
from stoker.types import PLAIN, Transitions

Aim = Callable[[Tensor], Tensor]
_MOST = 2**20  # numbers of observations that are drawn at once


def is_plain(policy: QNetwork) -> bool:
    """Whether the network is no more than layers over one vector."""
    (name, leaf), *others = policy.leaves.items()
    one_vector = name == PLAIN and not others and leaf.kind == "vector"
    more = policy.dueling or policy.noise_width or policy.activation not in ACTIVATIONS
    return one_vector and not more


def _layers(policy: QNetwork) -> list[nn.Linear]:
    modules = [module for module in policy.encoder.trunk if isinstance(module, nn.Linear)]
    return [*modules, policy.judge]


class ByHand:
    """Implements `learn.q_learner.QUpdates` for networks that are plain (`is_plain`).

    Parameters must lie where `descent` has laid them.
    """

    def __init__(
        self,
        policy: QNetwork,
        target: QNetwork,
        descent: FlatDescent,
        minibatch: int,
        double: bool,
    ) -> None:
        online, other = _layers(policy), _layers(target)
        self._online = PlainLayers(online, policy.activation)
        self._target = PlainLayers(other, policy.activation)
        self._policy, self._descent, self._double = policy, descent, double
        self._minibatch = minibatch
        self._starts = torch.tensor(policy.nvec).cumsum(0) - torch.tensor(policy.nvec)
        self.at_once = max(1, _MOST // (2 * minibatch * online[0].in_features))

    @torch.no_grad()
    def __call__(
        self, batch: Transitions, noise: Tensor | None, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        size, width = self._minibatch, batch.action.shape[1]
        seen = self._policy.normalised(batch.obs)[PLAIN].flatten(1)
        now, then = (part.unflatten(0, (-1, size)) for part in seen.chunk(2))
        # With a double network, what is seen now and what is seen then go through it together.
        rows = torch.cat((now, then), 1) if self._double else now
        ahead = self._aims(batch, self._judged(then, batch.next_mask), len(now))
        chosen = torch.zeros(len(batch.action), sum(self._policy.nvec))
        chosen.scatter_(1, batch.action + self._starts, 1.0)
        chosen, share = (
            part.unflatten(0, (-1, size))
            for part in (chosen, batch.weight.unsqueeze(1) / (size * width))
        )
        tried = share.amax((1, 2)) > 0
        aims, gaps, norms = [], [], []
        each = zip(rows, ahead, chosen, share, tried.tolist(), strict=True)  # sync: on the CPU
        for row, aim, at, part, may in each:
            value = self._online.forward(row)
            aims.append(aim(value))
            # 0 for what was not chosen; but NaN, if the aim is not finite, and so is the gradient.
            gap = (value[:size] if self._double else value).sub_(aims[-1]).mul_(at)
            gaps.append(gap)
            self._online.backward(gap.clamp(-1.0, 1.0).mul_(part))
            norms.append(self._descent.move(rate) if may else math.nan)
        gap = torch.stack(gaps)
        near, error = gap.clamp(-1.0, 1.0), gap.abs().sum(-1) / width
        metrics = {
            "train/loss": (share * near * (gap - 0.5 * near)).sum((1, 2)),
            "train/q_mean": gap.sum((1, 2)) / (size * width) + torch.stack(aims).mean((1, 2)),
            "train/td_error": error.mean(1),
        }
        return error.flatten(), self._descent.count(metrics, torch.tensor(norms), tried)

    def _judged(self, then: Tensor, mask: Tensor | None) -> Tensor:
        """What the target network says of [U, B, ...]: [U * B, A, W]."""
        return self._policy.columns(self._target.forward(then.flatten(0, 1)), mask)

    def _aims(self, batch: Transitions, judged: Tensor, updates: int) -> list[Aim]:
        """Of each update; what the network that learns says of the same is used if it is double."""
        if not self._double:
            aims = dqn.targets(judged, judged, batch.reward, batch.discount)
            return [partial(_known, aim) for aim in aims.view(updates, -1, 1)]
        parts = (judged, batch.reward, batch.discount)
        split = [part.unflatten(0, (updates, -1)).unbind() for part in parts]
        mask = batch.next_mask
        masks = [None] * updates if mask is None else mask.unflatten(0, (updates, -1)).unbind()
        return [partial(self._doubled, *each) for each in zip(*split, masks, strict=True)]

    def _doubled(
        self, judged: Tensor, reward: Tensor, discount: Tensor, mask: Tensor | None, value: Tensor
    ) -> Tensor:
        chosen_by = self._policy.columns(value[len(reward) :], mask)
        return dqn.targets(judged, chosen_by, reward, discount).unsqueeze(1)


def _known(aim: Tensor, _: Tensor) -> Tensor:
    return aim
