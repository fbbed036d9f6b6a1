"""Updates of PPO on a CPU by hand, where actor and critic are a few plain layers each.

As with DQN (`q_by_hand`), most of an update's time would be that of starting little operations, and
of autograd. So what does not depend on the updates before is worked out for a whole epoch at once:
rows, advantages, and what is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker.algos import ppo
from stoker.config.schema import Config
from stoker.kernels.descent import FlatDescent
from stoker.kernels.plain_layers import PlainLayers
from stoker.learn.learner import Learner
from stoker.nn.actor_critic import ActorCritic
from stoker.train.by_hand import (
    MOST,
    as_rows,
    by_hand,
    is_plain,
    judging_layers_of,
    layers_of,
    plain_head,
)
from stoker.types import PLAIN, Minibatch


class _Rows(NamedTuple):
    """A rollout's rows, [R, ...]; where one is not valid, its numbers are 0."""

    seen: np.ndarray
    action: np.ndarray
    mask: np.ndarray | None
    valid: np.ndarray
    log_prob: np.ndarray
    importance: np.ndarray
    value: np.ndarray
    advantage: np.ndarray
    value_target: np.ndarray

    def take(self, order: np.ndarray) -> _Rows:
        """Those of each number in `order`."""
        taken: Any = (None if field is None else field.take(order, 0) for field in self)
        return _Rows(*taken)


class _Epoch(NamedTuple):
    """What an epoch's updates learn from, [U, B, ...]."""

    seen: Tensor
    action: np.ndarray  # as the head has it laid out
    mask: np.ndarray | None
    valid: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    value_target: np.ndarray
    share: np.ndarray  # of the minibatch's mean; 0 where a row is not valid
    gain: np.ndarray  # by how much the loss falls as the ratio grows, within the trust region


class _Found(NamedTuple):
    """What the updates of an epoch came to, [U, B] each but the last."""

    log_ratio: np.ndarray
    ratio: np.ndarray
    entropy: np.ndarray
    gap: np.ndarray  # from the value's target to the value, as it counts
    norm: np.ndarray  # [U], of the gradient


def learns_by_hand(policy: ActorCritic, config: Config) -> bool:
    """Whether `LearnerByHand` can serve this run."""
    apart, compute = not config.network.shared_trunk, config.compute
    eagerly = compute.executor in ("auto", "eager") and config.rows_at_once >= config.minibatch
    on_host = next(policy.parameters()).device.type == "cpu"
    return on_host and is_plain(policy) and apart and eagerly


class LearnerByHand(Learner):
    """For a policy that `learns_by_hand`."""

    _descends = FlatDescent
    _descent: FlatDescent

    def __init__(self, policy: ActorCritic, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._policy = policy
        self._actor, self._critic = (
            PlainLayers(layers, policy.activation, self.minibatch, learned=self.minibatch)
            for layers in (layers_of(policy), judging_layers_of(policy))
        )
        self._head = plain_head(policy.head)
        self._raw = torch.empty(self.minibatch, policy.head.raw_width)
        self._at_once = max(1, MOST // (self.minibatch * self._actor.inputs))

    def epoch_of(self, rows: Minibatch) -> Callable[[Tensor], bool]:
        masks = None if rows.action_mask is None else rows.action_mask.numpy()
        numbers = (rows.log_prob, rows.importance, rows.value, rows.advantage, rows.value_target)
        known = (number.where(rows.valid, 0.0).numpy() for number in numbers)
        whole = _Rows(
            as_rows(rows.obs).numpy(), rows.action.numpy(), masks, rows.valid.numpy(), *known
        )
        return partial(self._epoch, whole, self.clip_range.item())  # sync: on the CPU

    def _epoch(self, whole: _Rows, clip: float, order: Tensor) -> bool:
        with by_hand():
            return any(self._stops(whole, clip, part) for part in order.split(self._at_once))

    def _stops(self, whole: _Rows, clip: float, order: Tensor) -> bool:
        """Make these updates; whether the KL limit was reached."""
        rows = self._shuffle(whole, order.numpy())
        each, ends = np.empty((4, *order.shape), np.float32), np.empty(len(order), np.float32)
        found = _Found(each[0], each[1], each[2], each[3], ends)
        made = self._make(rows, found, clip)
        self._count(rows, found, made, clip)
        return made < len(order)

    def _shuffle(self, whole: _Rows, order: np.ndarray) -> _Epoch:
        taken = whole.take(order)
        flat = {PLAIN: torch.from_numpy(taken.seen).flatten(0, 1)}
        advantage, valid = torch.from_numpy(taken.advantage), torch.from_numpy(taken.valid)
        if self.normalise is not None:
            advantage = self.normalise(advantage, valid)
        share = ppo.shares(valid, advantage.dtype).numpy()
        return _Epoch(
            self._policy.normalised(flat)[PLAIN].unflatten(0, order.shape),
            self._head.laid_out(taken.action),
            taken.mask,
            taken.valid,
            taken.log_prob,
            taken.value,
            taken.value_target,
            share,
            share * taken.importance * advantage.numpy(),
        )

    def _make(self, rows: _Epoch, found: _Found, clip: float) -> int:
        """Make updates; how many, as the one that the KL limit stops is not, nor any after it.

        Nor is that one counted as skipped, whatever else is wrong with it.
        """
        values = torch.empty(*rows.share.shape, 1)
        said, value = self._raw.numpy(), values.numpy()[..., 0]
        all_valid, masks = rows.valid.all(), [None] * len(value) if rows.mask is None else rows.mask
        # A gain that grows with the ratio ends at the upper limit, one that shrinks at the lower.
        sign, ends = np.sign(rows.gain), np.array([clip - 1.0, 1.0 + clip], np.float32)
        end, by_entropy = ends[(rows.gain > 0).view(np.int8)], -self.settings.ent_coef * rows.share
        for u in range(len(value)):
            self._actor.forward(rows.seen[u], self._raw)
            self._critic.forward(rows.seen[u], values[u])
            log_prob, found.entropy[u] = self._head.measure(said, masks[u], rows.action[u])
            log_ratio, ratio = found.log_ratio[u], found.ratio[u]
            np.subtract(log_prob, rows.log_prob[u], out=log_ratio)
            if not all_valid:
                np.copyto(log_ratio, 0.0, where=~rows.valid[u])
            np.exp(log_ratio, out=ratio)
            if self._is_too_far(rows.share[u], ratio, log_ratio):
                return u
            by_log_prob = -rows.gain[u] * ratio * (sign[u] * ratio <= end[u])
            self._head.slope(by_log_prob, by_entropy[u], self._actor.slope.numpy())
            self._judge(rows, u, value[u], found.gap[u])
            self._actor.backward()
            self._critic.backward()
            gap = found.gap[u]
            may = (all_valid or rows.valid[u].any()) and math.isfinite(gap @ gap)
            found.norm[u] = self._descent.move(self.learning_rate) if may else math.nan
        return len(value)

    def _is_too_far(self, share: np.ndarray, ratio: np.ndarray, log_ratio: np.ndarray) -> bool:
        limit = self.settings.target_kl
        return limit is not None and bool(share @ (ratio - 1.0 - log_ratio) > 1.5 * limit)

    def _judge(self, rows: _Epoch, u: int, value: np.ndarray, gap: np.ndarray) -> None:
        """Write what values are off by to `gap`, and the loss's slope to the critic."""
        limit, slope = self.settings.clip_range_vf, self._critic.slope.numpy()[:, 0]
        pull = 2.0 * self.settings.vf_coef * rows.share[u]
        if limit is None:
            np.subtract(value, rows.value_target[u], out=gap)
        else:
            step = value - rows.value[u]
            near = step.clip(-limit, limit)
            np.add(rows.value[u] - rows.value_target[u], near, out=gap)
            pull *= near == step
        np.multiply(pull, gap, out=slope)

    def _count(self, rows: _Epoch, found: _Found, made: int, clip: float) -> None:
        """What `algos.ppo.loss` reports, of the first `made` updates at once."""
        settings, share, gain = self.settings, rows.share[:made], rows.gain[:made]
        ratio, log_ratio = found.ratio[:made], found.log_ratio[:made]
        within = ratio.clip(1.0 - clip, 1.0 + clip)
        gained = np.minimum(gain * ratio, gain * within).sum(1)
        value_loss = (share * found.gap[:made] ** 2).sum(1)
        entropy = (share * found.entropy[:made]).sum(1)
        total = settings.vf_coef * value_loss - gained - settings.ent_coef * entropy
        metrics = {
            "train/loss": total,
            "train/policy_gradient_loss": -gained,
            "train/value_loss": value_loss,
            "train/entropy_loss": -entropy,
            "train/approx_kl": (share * (ratio - 1.0 - log_ratio)).sum(1),
            "train/clip_fraction": (share * (np.abs(ratio - 1.0) > clip)).sum(1),
        }
        measured = {name: torch.from_numpy(each) for name, each in metrics.items()}
        norms, tried = torch.from_numpy(found.norm[:made]), rows.valid[:made].any(1)
        self._descent.count(measured, norms, torch.from_numpy(tried))
