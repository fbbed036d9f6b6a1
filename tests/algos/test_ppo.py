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
        log_prob=normal() - 2,
        importance=torch.ones(rows) if valid is None else valid.to(torch.float32),
        value=normal(),
        advantage=3 * normal() + 5,
        value_target=2 * normal(),
        valid=torch.ones(rows, dtype=torch.bool) if valid is None else valid,
    )


def acted_on_by_another(batch: Minibatch, seed: int = 2) -> Minibatch:
    """The same, as if an older policy had acted: importances between 0 and 2."""
    random = torch.Generator().manual_seed(seed)
    drawn = 2 * torch.rand(len(batch.value), generator=random)
    return batch._replace(importance=torch.where(batch.valid, drawn, 0.0))


def make_evaluation(batch: Minibatch, seed: int = 1) -> Evaluation:
    """A policy that has moved since learning began; leaves that take a gradient."""
    random = torch.Generator().manual_seed(seed)
    rows = len(batch.value)
    return Evaluation(
        (batch.log_prob + 0.3 * torch.randn(rows, generator=random)).requires_grad_(),
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
        log_ratio = float(now.log_prob[i].detach()) - float(batch.log_prob[i])
        ratio = math.exp(log_ratio)
        gain = min(a * ratio, a * min(max(ratio, 0.8), 1.2))
        policy.append(-float(batch.importance[i]) * gain)
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


def loss_of(now: Evaluation, batch: Minibatch, clip: Tensor, settings: PPOSettings) -> Loss:
    """Of a minibatch that goes through whole, as the learner has it."""
    if settings.normalize_advantage:
        batch = batch._replace(advantage=ppo.normalised(batch.advantage, batch.valid))
    return ppo.loss(now, batch, clip, settings)


def gradients(now: Evaluation, loss: Loss) -> list[Tensor]:
    return list(torch.autograd.grad(loss.total, list(now)))


@pytest.mark.parametrize("normalize_advantage", [True, False])
@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
@pytest.mark.parametrize("some_invalid", [True, False])
@pytest.mark.parametrize("in_step", [True, False])
def test_loss_equals_the_reference(
    normalize_advantage: bool, clip_range_vf: float | None, some_invalid: bool, in_step: bool
) -> None:
    settings = settings_of(
        normalize_advantage=normalize_advantage,
        clip_range_vf=clip_range_vf,
        ent_coef=0.03,
        vf_coef=0.7,
    )
    batch = make_batch(valid=torch.arange(64) % 3 != 0 if some_invalid else None)
    batch = batch if in_step else acted_on_by_another(batch)
    now = make_evaluation(batch)
    loss = loss_of(now, batch, CLIP, settings)
    expected = reference(now, batch, settings)
    assert 0.0 < expected["train/clip_fraction"] < 1.0  # both sides of the clip are in play
    assert {name: float(x) for name, x in loss.metrics.items()} == pytest.approx(expected, rel=1e-5)
    assert float(loss.total.detach()) == pytest.approx(expected["train/loss"], rel=1e-5)
    assert float(loss.approx_kl) == pytest.approx(expected["train/approx_kl"], rel=1e-4)


def test_the_policy_that_learning_began_with_has_ratio_1() -> None:
    """No KL, nothing clipped, and the plain policy gradient: -advantage / rows."""
    batch = make_batch()
    now = make_evaluation(batch)
    now = now._replace(log_prob=batch.log_prob.clone().requires_grad_())
    loss = loss_of(now, batch, CLIP, settings_of(normalize_advantage=False))
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
    batch = make_batch(1)._replace(advantage=advantage * one, log_prob=0 * one)
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    now = make_evaluation(batch)._replace(log_prob=log_prob)
    loss = loss_of(now, batch, CLIP, settings_of(normalize_advantage=False))
    gradient = gradients(now, loss)[0]
    torch.testing.assert_close(gradient, torch.tensor([-advantage * ratio if moves else 0.0]))


@pytest.mark.parametrize("garbage", [1e4, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
def test_invalid_rows_carry_no_loss_and_no_gradient(
    garbage: float, clip_range_vf: float | None
) -> None:
    settings = settings_of(ent_coef=0.03, clip_range_vf=clip_range_vf)
    batch = acted_on_by_another(make_batch(valid=torch.arange(64) % 4 != 1))
    now = make_evaluation(batch)
    fill = {
        name: torch.where(batch.valid, getattr(batch, name), garbage)
        for name in ("log_prob", "value", "value_target")
    }
    # `prepare` gives an invalid row the advantage and the importance 0, so of these only finite
    # garbage is a fair test.
    for name in ("advantage", "importance"):
        fill[name] = torch.where(batch.valid, getattr(batch, name), 1e4)
    dirty = batch._replace(**fill)
    expected, found = (loss_of(now, b, CLIP, settings) for b in (batch, dirty))
    torch.testing.assert_close(found.total, expected.total)
    torch.testing.assert_close(found.metrics, expected.metrics)
    for clean, soiled in zip(gradients(now, expected), gradients(now, found), strict=True):
        torch.testing.assert_close(soiled, clean)
        assert (soiled[~batch.valid] == 0).all()
        assert (soiled[batch.valid] != 0).any()


def test_a_batch_without_a_valid_row_has_no_loss_at_all() -> None:
    batch = make_batch(valid=torch.zeros(64, dtype=torch.bool))
    now = make_evaluation(batch)
    loss = loss_of(now, batch, CLIP, settings_of(ent_coef=0.1))
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
        loss = loss_of(now, batch._replace(value_target=target), CLIP, settings)
        assert loss.metrics["train/value_loss"] == pytest.approx(expected)
        assert gradients(now, loss)[2] == 0.0  # beyond the clip


def test_more_entropy_is_less_loss() -> None:
    batch = make_batch()
    now = make_evaluation(batch)
    loss = loss_of(now, batch, CLIP, settings_of(ent_coef=0.25))
    torch.testing.assert_close(gradients(now, loss)[1], torch.full((64,), -0.25 / 64))
    assert loss.metrics["train/entropy_loss"] == pytest.approx(-float(now.entropy.detach().mean()))


def test_advantages_are_scaled_over_valid_rows_alone() -> None:
    """With log-ratio 0 the gradient is -advantage / rows, so it shows what they were scaled to."""
    batch = make_batch(valid=torch.arange(64) < 40)
    batch.advantage[40:] = 1e6
    log_prob = batch.log_prob.clone().requires_grad_()
    now = make_evaluation(batch)._replace(log_prob=log_prob)
    loss = loss_of(now, batch, CLIP, settings_of(normalize_advantage=True))
    scaled = -40 * gradients(now, loss)[0][:40].numpy()
    known = batch.advantage[:40].numpy()
    np.testing.assert_allclose(scaled, (known - known.mean()) / known.std(), rtol=1e-4, atol=1e-5)


def test_within_the_clip_range_the_gradient_is_that_of_the_ratio_to_the_policy_that_acted() -> None:
    """d/dtheta of E_mu[pi_theta / mu * A], whatever policy pi_0 learning began with."""
    random = torch.Generator().manual_seed(4)
    batch, acted = make_batch(), torch.randn(64, generator=random) / 5 - 2
    began = acted + torch.rand(64, generator=random) - 0.5
    assert ((began - acted).exp() < 2.0).all()
    batch = batch._replace(log_prob=began, importance=(began - acted).exp())
    within = (torch.rand(64, generator=random) - 0.5) * 0.36  # log-ratios inside of 0.8 to 1.2
    now = make_evaluation(batch)._replace(log_prob=(began + within).requires_grad_())
    loss = loss_of(now, batch, CLIP, settings_of(normalize_advantage=False))
    assert loss.metrics["train/clip_fraction"] == 0.0
    plain = -((now.log_prob - acted).exp() * batch.advantage).mean()
    expected = torch.autograd.grad(plain, now.log_prob)[0]
    torch.testing.assert_close(gradients(now, loss)[0], expected)
    assert float(loss.metrics["train/policy_gradient_loss"]) == pytest.approx(
        float(plain.detach()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [(1.0, 1.5, False), (1.0, 0.5, True), (-1.0, 0.5, False), (-1.0, 1.5, True)],
)
def test_the_trust_region_lies_around_the_policy_that_learning_began_with(
    advantage: float, ratio: float, moves: bool
) -> None:
    """Importance scales a gradient and never decides whether there is one."""
    one = torch.ones(1)
    for importance in (0.1, 1.9):
        batch = make_batch(1)._replace(
            advantage=advantage * one, log_prob=0 * one, importance=importance * one
        )
        log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
        now = make_evaluation(batch)._replace(log_prob=log_prob)
        loss = loss_of(now, batch, CLIP, settings_of(normalize_advantage=False))
        expected = -advantage * ratio * importance if moves else 0.0
        torch.testing.assert_close(gradients(now, loss)[0], torch.tensor([expected]))


def test_kl_and_clip_fraction_are_measured_from_the_policy_learning_began_with() -> None:
    batch = make_batch()
    now = make_evaluation(batch)
    in_step, late = (
        loss_of(now, b, CLIP, settings_of()) for b in (batch, acted_on_by_another(batch))
    )
    assert late.approx_kl == in_step.approx_kl > 0
    for name in ("train/approx_kl", "train/clip_fraction", "train/value_loss"):
        assert late.metrics[name] == in_step.metrics[name], name
    assert late.total != in_step.total
    unmoved = now._replace(log_prob=batch.log_prob)
    assert loss_of(unmoved, acted_on_by_another(batch), CLIP, settings_of()).approx_kl == 0.0


def test_importance_is_how_much_likelier_the_learning_policy_is_and_at_most_2() -> None:
    rollout = make_rollout(7, 3)
    grown = torch.linspace(-3.0, 3.0, 21).reshape(7, 3)
    rollout = rollout._replace(behaviour_log_prob=torch.zeros(7, 3), log_prob=grown)
    rows, _ = ppo.prepare(rollout, rollout.reward, settings_of())
    expected = np.where(rollout.valid, np.minimum(np.exp(grown.numpy()), 2.0), 0.0).flatten()
    np.testing.assert_allclose(rows.importance, expected, rtol=1e-6)
    assert (rows.importance == 2.0).any()
    assert torch.equal(rows.log_prob, grown.flatten())


def test_importance_is_exactly_1_in_step_and_0_where_a_row_is_not_valid() -> None:
    rollout = make_rollout(7, 3)
    acted = torch.randn(7, 3) * 10
    acted[~rollout.valid] = float("nan")
    for gap in (float("nan"), float("inf"), 1e30):
        learning = torch.where(rollout.valid, acted, gap)
        rollout = rollout._replace(behaviour_log_prob=acted, log_prob=learning)
        rows, _ = ppo.prepare(rollout, rollout.reward, settings_of())
        assert torch.equal(rows.importance, rollout.valid.flatten().to(torch.float32))


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
        log_prob=number.clone(),
        value=number.clone(),
        reward=number.clone(),
        terminated=never,
        truncated=never.clone(),
        final_value=torch.zeros_like(number),
        valid=mark % 5 != 0,
        last_value=torch.zeros(envs),
        chosen=None,
    )


def test_prepared_rows_are_every_transition_once_and_line_up() -> None:
    rollout = make_rollout(7, 3)
    rows, _ = ppo.prepare(rollout, rollout.reward, settings_of(gamma=0.0))
    mark = torch.arange(21)
    for found in (
        rows.obs["a"].squeeze(-1),
        rows.obs["b"],
        rows.action.squeeze(-1),
        rows.log_prob,
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
