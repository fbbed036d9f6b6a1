"""The PPO loss against a plain reference, row by row, and what invalid rows may not do to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stoker.algos import ppo
from stoker.config.schema import PPOSettings
from stoker.nn.actor_critic import Evaluation
from stoker.types import PLAIN, Loss, Minibatch, Rollout

CLIP = torch.tensor(0.2)


def settings_of(**changes: Any) -> PPOSettings:
    return PPOSettings(n_steps=4, batch_size=8, n_epochs=1, **changes)


def make_batch(rows: int = 64, seed: int = 0, valid: Tensor | None = None) -> Minibatch:
    random = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(rows, generator=random)

    return Minibatch(
        obs={PLAIN: torch.zeros(rows, 1)},
        action=torch.zeros(rows, 1, dtype=torch.int64),
        action_mask=None,
        behaviour_log_prob=normal() - 2,
        value=normal(),
        advantage=3 * normal() + 5,
        value_target=2 * normal(),
        valid=torch.ones(rows, dtype=torch.bool) if valid is None else valid,
    )


def make_evaluation(batch: Minibatch, seed: int = 1) -> Evaluation:
    """A policy that has moved away from the one that acted; leaves that take a gradient."""
    random = torch.Generator().manual_seed(seed)
    rows = len(batch.value)
    return Evaluation(
        (batch.behaviour_log_prob + 0.3 * torch.randn(rows, generator=random)).requires_grad_(),
        torch.rand(rows, generator=random).requires_grad_(),
        (batch.value + torch.randn(rows, generator=random)).requires_grad_(),
    )


def reference(now: Evaluation, batch: Minibatch, settings: PPOSettings) -> dict[str, float]:
    """PPO row by row in Python floats, over the valid rows."""
    rows = [i for i in range(len(batch.valid)) if batch.valid[i]]
    advantage = np.array([float(batch.advantage[i]) for i in rows])
    if settings.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy, value, kl, clipped, entropy = [], [], [], [], []
    for a, i in zip(advantage, rows, strict=True):
        log_ratio = float(now.log_prob[i].detach()) - float(batch.behaviour_log_prob[i])
        ratio = math.exp(log_ratio)
        policy.append(-min(a * ratio, a * min(max(ratio, 0.8), 1.2)))
        guess, old = float(now.value[i].detach()), float(batch.value[i])
        if (limit := settings.clip_range_vf) is not None:
            guess = old + min(max(guess - old, -limit), limit)
        value.append((guess - float(batch.value_target[i])) ** 2)
        kl.append(ratio - 1 - log_ratio)
        clipped.append(abs(ratio - 1) > 0.2)
        entropy.append(float(now.entropy[i].detach()))
    means = [float(np.mean(x)) for x in (policy, value, entropy, kl, clipped)]
    total = means[0] + settings.vf_coef * means[1] - settings.ent_coef * means[2]
    return {
        "train/loss": total,
        "train/policy_gradient_loss": means[0],
        "train/value_loss": means[1],
        "train/entropy_loss": -means[2],
        "train/approx_kl": means[3],
        "train/clip_fraction": means[4],
    }


def gradients(now: Evaluation, loss: Loss) -> list[Tensor]:
    return list(torch.autograd.grad(loss.total, list(now)))


@pytest.mark.parametrize("normalize_advantage", [True, False])
@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
@pytest.mark.parametrize("some_invalid", [True, False])
def test_loss_equals_the_reference(
    normalize_advantage: bool, clip_range_vf: float | None, some_invalid: bool
) -> None:
    settings = settings_of(
        normalize_advantage=normalize_advantage,
        clip_range_vf=clip_range_vf,
        ent_coef=0.03,
        vf_coef=0.7,
    )
    batch = make_batch(valid=torch.arange(64) % 3 != 0 if some_invalid else None)
    now = make_evaluation(batch)
    loss = ppo.loss(now, batch, CLIP, settings)
    expected = reference(now, batch, settings)
    assert 0.0 < expected["train/clip_fraction"] < 1.0  # both sides of the clip are in play
    assert {name: float(x) for name, x in loss.metrics.items()} == pytest.approx(expected, rel=1e-5)
    assert float(loss.total.detach()) == pytest.approx(expected["train/loss"], rel=1e-5)
    assert float(loss.approx_kl) == pytest.approx(expected["train/approx_kl"], rel=1e-4)


def test_the_policy_that_acted_has_ratio_1() -> None:
    """No KL, nothing clipped, and the plain policy gradient: -advantage / rows."""
    batch = make_batch()
    now = make_evaluation(batch)
    now = now._replace(log_prob=batch.behaviour_log_prob.clone().requires_grad_())
    loss = ppo.loss(now, batch, CLIP, settings_of(normalize_advantage=False))
    assert loss.approx_kl == 0.0
    assert loss.metrics["train/clip_fraction"] == 0.0
    assert loss.metrics["train/policy_gradient_loss"] == pytest.approx(
        -float(batch.advantage.mean())
    )
    torch.testing.assert_close(gradients(now, loss)[0], -batch.advantage / 64)


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [(1.0, 1.5, False), (1.0, 0.5, True), (-1.0, 0.5, False), (-1.0, 1.5, True)],
)
def test_the_gradient_is_cut_only_where_the_policy_went_too_far(
    advantage: float, ratio: float, moves: bool
) -> None:
    one = torch.ones(1)
    batch = make_batch(1)._replace(advantage=advantage * one, behaviour_log_prob=0 * one)
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    now = make_evaluation(batch)._replace(log_prob=log_prob)
    loss = ppo.loss(now, batch, CLIP, settings_of(normalize_advantage=False))
    gradient = gradients(now, loss)[0]
    torch.testing.assert_close(gradient, torch.tensor([-advantage * ratio if moves else 0.0]))


@pytest.mark.parametrize("garbage", [1e4, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
def test_invalid_rows_carry_no_loss_and_no_gradient(
    garbage: float, clip_range_vf: float | None
) -> None:
    settings = settings_of(ent_coef=0.03, clip_range_vf=clip_range_vf)
    batch = make_batch(valid=torch.arange(64) % 4 != 1)
    now = make_evaluation(batch)
    fill = {
        name: torch.where(batch.valid, getattr(batch, name), garbage)
        for name in ("behaviour_log_prob", "value", "value_target")
    }
    # `gae` gives an invalid row the advantage 0, so of that only finite garbage is a fair test.
    fill["advantage"] = torch.where(batch.valid, batch.advantage, 1e4)
    dirty = batch._replace(**fill)
    expected, found = (ppo.loss(now, b, CLIP, settings) for b in (batch, dirty))
    torch.testing.assert_close(found.total, expected.total)
    torch.testing.assert_close(found.metrics, expected.metrics)
    for clean, soiled in zip(gradients(now, expected), gradients(now, found), strict=True):
        torch.testing.assert_close(soiled, clean)
        assert (soiled[~batch.valid] == 0).all()
        assert (soiled[batch.valid] != 0).any()


def test_a_batch_without_a_valid_row_has_no_loss_at_all() -> None:
    batch = make_batch(valid=torch.zeros(64, dtype=torch.bool))
    now = make_evaluation(batch)
    loss = ppo.loss(now, batch, CLIP, settings_of(ent_coef=0.1))
    assert loss.total == 0.0
    for gradient in gradients(now, loss):
        assert (gradient == 0).all()


def test_value_clipping_uses_the_clipped_value_alone_as_sb3_does() -> None:
    """Value 0 before, 1 now, target 1, clip 0.2: SB3's loss is 0.64 where CleanRL's max is too,
    but with target 0 SB3's is 0.04 where CleanRL's would be 1."""
    settings = settings_of(clip_range_vf=0.2)
    zero, one = torch.zeros(1), torch.ones(1)
    batch = make_batch(1)._replace(value=zero)
    now = make_evaluation(batch)._replace(value=one.clone().requires_grad_())
    for target, expected in ((one, 0.64), (zero, 0.04)):
        loss = ppo.loss(now, batch._replace(value_target=target), CLIP, settings)
        assert loss.metrics["train/value_loss"] == pytest.approx(expected)
        assert gradients(now, loss)[2] == 0.0  # beyond the clip


def test_more_entropy_is_less_loss() -> None:
    batch = make_batch()
    now = make_evaluation(batch)
    loss = ppo.loss(now, batch, CLIP, settings_of(ent_coef=0.25))
    torch.testing.assert_close(gradients(now, loss)[1], torch.full((64,), -0.25 / 64))
    assert loss.metrics["train/entropy_loss"] == pytest.approx(-float(now.entropy.detach().mean()))


def test_advantages_are_scaled_over_valid_rows_alone() -> None:
    """With log-ratio 0 the gradient is -advantage / rows, so it shows what they were scaled to."""
    batch = make_batch(valid=torch.arange(64) < 40)
    batch.advantage[40:] = 1e6
    log_prob = batch.behaviour_log_prob.clone().requires_grad_()
    now = make_evaluation(batch)._replace(log_prob=log_prob)
    loss = ppo.loss(now, batch, CLIP, settings_of(normalize_advantage=True))
    scaled = -40 * gradients(now, loss)[0][:40].numpy()
    known = batch.advantage[:40].numpy()
    np.testing.assert_allclose(scaled, (known - known.mean()) / known.std(), rtol=1e-4, atol=1e-5)


def make_rollout(steps: int, envs: int) -> Rollout:
    """Every field of step t, environment n holds t * N + n, or what fits it."""
    mark = torch.arange(steps * envs).reshape(steps, envs)
    number, never = mark.to(torch.float32), torch.zeros_like(mark, dtype=torch.bool)
    return Rollout(
        obs={"a": number[..., None].clone(), "b": mark.clone()},
        action=mark[..., None].clone(),
        action_mask=(mark[..., None] >> torch.arange(6)) % 2 == 1,
        behaviour_log_prob=number.clone(),
        policy_version=mark.clone(),
        value=number.clone(),
        reward=number.clone(),
        terminated=never,
        truncated=never.clone(),
        final_value=torch.zeros_like(number),
        valid=mark % 5 != 0,
        last_value=torch.zeros(envs),
    )


def test_prepared_rows_are_every_transition_once_and_line_up() -> None:
    rollout = make_rollout(7, 3)
    rows, _ = ppo.prepare(rollout, rollout.reward, settings_of(gamma=0.0))
    mark = torch.arange(21)
    for found in (
        rows.obs["a"].squeeze(-1),
        rows.obs["b"],
        rows.action.squeeze(-1),
        rows.behaviour_log_prob,
        rows.value,
    ):
        torch.testing.assert_close(found.long(), mark)
    assert rows.action_mask is not None
    torch.testing.assert_close((rows.action_mask * 2 ** torch.arange(6)).sum(-1), mark)
    torch.testing.assert_close(rows.valid, mark % 5 != 0)
    # With gamma 0 the target of a valid row is its reward; an invalid one keeps its own value.
    torch.testing.assert_close(rows.value_target.long(), mark)
    torch.testing.assert_close(rows.advantage, torch.zeros(21))


def test_prepare_uses_the_reward_it_is_given() -> None:
    rollout = make_rollout(7, 3)
    rows, _ = ppo.prepare(rollout, rollout.reward + 100, settings_of(gamma=0.0))
    torch.testing.assert_close(rows.advantage, torch.where(rows.valid, 100.0, 0.0))


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_a_constant_one() -> None:
    batch = make_batch()
    perfect, constant = (
        batch._replace(value=batch.value_target),
        batch._replace(value=torch.ones(64)),
    )
    assert float(ppo.explained_variance(perfect)) == 1.0
    assert float(ppo.explained_variance(constant)) == pytest.approx(0.0, abs=1e-6)


def test_explained_variance_equals_numpy_over_valid_rows() -> None:
    batch = make_batch(valid=torch.arange(64) % 2 == 0)
    batch.value[1::2] = 1e6
    target, value = batch.value_target[::2].numpy(), batch.value[::2].numpy()
    expected = 1 - np.var(target - value) / np.var(target)
    assert float(ppo.explained_variance(batch)) == pytest.approx(expected, rel=1e-5)
