"""Proximal policy optimisation: what a rollout is worth, and the loss of a minibatch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stoker.algos.returns import gae
from stoker.config.schema import PPOSettings
from stoker.nn.actor_critic import Evaluation
from stoker.types import Loss, Minibatch, Prepared, Rollout

_MOST_IMPORTANCE = 2.0  # past it, a row that the old policy hardly ever chose would drown the rest


def prepare(rollout: Rollout, reward: Tensor, settings: PPOSettings) -> Prepared:
    """A rollout's rows with their advantages and value targets.

    `reward` is the rollout's own, or a normalised one.
    """
    advantage = gae(rollout, reward, settings.gamma, settings.gae_lambda)
    rows = Minibatch(
        obs={leaf: value.flatten(0, 1) for leaf, value in rollout.obs.items()},
        action=rollout.action.flatten(0, 1),
        action_mask=None if rollout.action_mask is None else rollout.action_mask.flatten(0, 1),
        log_prob=rollout.log_prob.flatten(),
        importance=_importance(rollout).flatten(),
        value=rollout.value.flatten(),
        advantage=advantage.flatten(),
        value_target=(advantage + rollout.value).flatten(),
        valid=rollout.valid.flatten(),
    )
    metrics = {"train/explained_variance": explained_variance(rows)}
    return Prepared(rows if rollout.chosen is None else rows.take(rollout.chosen), metrics)


def _importance(rollout: Rollout) -> Tensor:
    """pi / mu where the policy that learns, pi, is newer than mu that acted; 1 in step."""
    ratio = (rollout.log_prob - rollout.behaviour_log_prob).exp()
    return torch.where(rollout.valid, ratio.clamp(max=_MOST_IMPORTANCE), 0.0)


def shares(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """What each row is of the mean over the valid ones, [..., B]."""
    weight = valid.to(dtype)
    return weight / weight.sum(-1, keepdim=True).clamp(min=1.0)


def _mean_over(valid: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    share = shares(valid, dtype)
    return lambda rows: (rows * share).sum()


def normalised(advantage: Tensor, valid: Tensor) -> Tensor:
    """Advantages [..., B] of minibatches, of mean 0 and deviation 1 over the valid rows of each."""
    share = shares(valid, advantage.dtype)
    centred = advantage - (advantage * share).sum(-1, keepdim=True)
    return centred / ((centred**2 * share).sum(-1, keepdim=True).sqrt() + 1e-8)


def loss(now: Evaluation, batch: Minibatch, clip: Tensor, settings: PPOSettings) -> Loss:
    """The clipped surrogate, the value loss and the entropy bonus, over valid rows alone.

    The trust region lies around the policy that learning began with; `importance` corrects for an
    older one having acted, so that the gradient is that of the ratio to the policy that acted.
    """
    mean, advantage = _mean_over(batch.valid, now.value.dtype), batch.advantage
    log_ratio = torch.where(batch.valid, now.log_prob - batch.log_prob, 0.0)
    ratio = log_ratio.exp()
    clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
    gain = torch.minimum(advantage * ratio, advantage * clipped)
    policy_loss = -mean(batch.importance * gain)

    value = now.value
    if settings.clip_range_vf is not None:
        step = (value - batch.value).clamp(-settings.clip_range_vf, settings.clip_range_vf)
        value = batch.value + step
    value_loss = mean(torch.where(batch.valid, value - batch.value_target, 0.0) ** 2)
    entropy = mean(now.entropy)
    total = policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy

    with torch.no_grad():
        approx_kl = mean(ratio - 1 - log_ratio)
        clip_fraction = mean(((ratio - 1).abs() > clip).to(ratio.dtype))
    metrics = {
        "train/loss": total.detach(),
        "train/policy_gradient_loss": policy_loss.detach(),
        "train/value_loss": value_loss.detach(),
        "train/entropy_loss": -entropy.detach(),
        "train/approx_kl": approx_kl,
        "train/clip_fraction": clip_fraction,
    }
    return Loss(total, approx_kl, metrics)


def explained_variance(rows: Minibatch) -> Tensor:
    """1 - Var(target - value) / Var(target), over valid rows: 1 is a perfect critic."""
    mean = _mean_over(rows.valid, rows.value.dtype)

    def variance(x: Tensor) -> Tensor:
        return mean((x - mean(x)) ** 2)

    return 1 - variance(rows.value_target - rows.value) / variance(rows.value_target)
