"""Updates of DQN on a CPU by hand, where the network is a few plain layers (`by_hand.is_plain`).

Minibatches are small there, and most of an update's time is that of starting some eighty little
operations. So what does not depend on the updates before is worked out for many updates at once:
rows, what the target network says of them, and what is reported. Thirty are left for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stoker.algos import dqn
from stoker.kernels.descent import FlatDescent
from stoker.kernels.plain_layers import PlainLayers
from stoker.learn.q_learner import Updating
from stoker.nn.q_network import QNetwork
from stoker.train.by_hand import JUDGED, MOST, as_rows, by_hand, layers_of
from stoker.types import Transitions

Aim = Callable[[np.ndarray], np.ndarray]
"""What rows are worth, [B, 1], by what the network that learns says of them, [..., choices]."""


class QByHand:
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
        layers, rows = layers_of(policy), (1 + double) * minibatch
        self._online = PlainLayers(layers, policy.activation, rows, learned=minibatch)
        self._target = PlainLayers(layers_of(target), policy.activation, JUDGED)
        self._policy, self._descent, self._double = policy, descent, double
        self._minibatch = minibatch
        self._starts = torch.tensor(policy.nvec).cumsum(0) - torch.tensor(policy.nvec)
        self._place = policy.columns.place.numpy()
        self._each = np.arange(minibatch * len(policy.nvec))
        self.at_once = max(1, MOST // (2 * minibatch * layers[0].in_features))

    def within(self) -> AbstractContextManager[None]:
        return by_hand()

    def __call__(self, batch: Transitions, noise: Tensor | None, rate: Tensor) -> Updating:
        size, width = self._minibatch, batch.action.shape[1]
        seen = as_rows(self._policy.normalised(batch.obs))
        now, then = (part.unflatten(0, (-1, size)) for part in seen.chunk(2))
        # With a double network, what is seen now and what is seen then go through it together.
        rows = torch.cat((now, then), 1) if self._double else now
        chosen = torch.zeros(len(batch.action), sum(self._policy.nvec))
        chosen.scatter_(1, batch.action + self._starts, 1.0)
        share = batch.weight.unsqueeze(1) / (size * width)
        chosen, share = (part.unflatten(0, (-1, size)) for part in (chosen, share))
        tried = share.amax((1, 2)) > 0
        wanted = tried.tolist()  # sync: on the CPU
        aims = self._aims(batch, then)
        counts = zip(chosen.numpy(), share.numpy(), wanted, strict=True)
        value, aim, norms = yield from self._move(rows, aims, list(counts), rate)
        gap = (value - aim) * chosen
        near, error = gap.clamp(-1.0, 1.0), gap.abs().sum(-1) / width
        metrics = {
            "train/loss": (share * near * (gap - 0.5 * near)).sum((1, 2)),
            "train/q_mean": gap.sum((1, 2)) / (size * width) + aim.mean((1, 2)),
            "train/td_error": error.mean(1),
        }
        return error.flatten(), self._descent.count(metrics, norms, tried)

    def _move(
        self,
        rows: Tensor,
        aims: Sequence[Aim],
        counts: Sequence[tuple[np.ndarray, np.ndarray, bool]],
        rate: Tensor,
    ) -> Generator[None, None, tuple[Tensor, Tensor, Tensor]]:
        """Make updates: what was said of rows [U, B, choices], what was aimed at [U, B, 1], and of
        each update the gradient's norm. Numbers that are few are cheaper to handle with NumPy.

        `counts` has of each update what was chosen, how much rows count, and whether any does.
        """
        online, size = self._online, self._minibatch
        values = torch.empty(*rows.shape[:2], sum(self._policy.nvec))
        slope, aimed, norms = online.slope.numpy(), [], []
        least, most = -np.ones_like(slope), np.ones_like(slope)
        each = zip(rows, values, values.numpy(), aims, counts, strict=True)
        for row, value, said, aim, (chosen, share, may) in each:
            online.forward(row, value)
            aimed.append(aim(said))
            # 0 for what was not chosen; but NaN, if the aim is not finite, and so is the gradient.
            np.subtract(said[:size], aimed[-1], out=slope)
            np.multiply(slope, chosen, out=slope)
            np.maximum(slope, least, out=slope)
            np.minimum(slope, most, out=slope)
            np.multiply(slope, share, out=slope)
            online.backward()
            norms.append(self._descent.move(rate) if may else math.nan)
            yield
        return values[:, :size], torch.from_numpy(np.stack(aimed)), torch.tensor(norms)

    def _aims(self, batch: Transitions, then: Tensor) -> list[Aim]:
        """Of each update; if it is double, by what the network that learns will say of the same."""
        updates, size = then.shape[:2]
        columns, mask = self._policy.columns, batch.next_mask
        judged = columns(self._target.judge(then.flatten(0, 1)), mask)
        if not self._double:
            aims = dqn.targets(judged, judged, batch.reward, batch.discount)
            return [partial(_known, aim) for aim in aims.view(updates, -1, 1).numpy()]
        reward, discount = batch.reward[:, None, None], batch.discount[:, None, None]
        worth = (reward + discount * judged).view(updates, len(self._each), -1).numpy()
        never: Sequence[np.ndarray | None] = [None] * updates
        if mask is not None or columns.ragged:
            least = torch.finfo(judged.dtype).min
            never = (judged == least).unflatten(0, (updates, size)).numpy()
        return [partial(self._doubled, *each) for each in zip(worth, never, strict=True)]

    def _doubled(self, worth: np.ndarray, never: np.ndarray | None, said: np.ndarray) -> np.ndarray:
        """By what the choices are worth [B * A, W], and which are impossible."""
        size = self._minibatch
        choices = said[size:][:, self._place]
        if never is not None:
            choices[never] = -np.inf
        found = worth[self._each, choices.argmax(-1).ravel()].reshape(size, -1)
        return found if found.shape[1] == 1 else found.mean(1, keepdims=True)


def _known(aim: np.ndarray, _: np.ndarray) -> np.ndarray:
    return aim
