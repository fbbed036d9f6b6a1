"""The Q-network: what actions are worth, which are taken, and how others are tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stoker.config.schema import NetworkSettings
from stoker.nn.q_network import NoisyLinear, QNetwork
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

ROWS = 400


def make(nvec: tuple[int, ...] = (3,), **options: Any) -> QNetwork:
    torch.manual_seed(0)
    action = ActionSpec("multi_discrete", (len(nvec),), "int64", nvec=nvec, start=(0,) * len(nvec))
    spec = EnvSpec("made up", {PLAIN: LeafSpec("vector", (4,), "float32")}, action)
    settings = NetworkSettings(network_arch=(8, 8), activation="relu")
    policy = QNetwork(spec, settings, options.pop("normalize_obs", False), **options)
    policy.seed(1, torch.device("cpu"))
    return policy


def seen(rows: int = ROWS) -> dict[str, Tensor]:
    return {PLAIN: torch.randn(rows, 4, generator=torch.Generator().manual_seed(2))}


def test_the_best_choice_of_each_column_is_taken() -> None:
    policy = make((2, 3))
    worth = policy(seen())
    best = torch.stack((worth[:, :2].argmax(1), worth[:, 2:].argmax(1)), 1)
    assert torch.equal(policy.act_greedily(seen(), None), best)
    taken = policy.act(seen(), None, policy.draw_noise(ROWS)).action  # epsilon is 0
    assert torch.equal(taken, best)


@pytest.mark.parametrize("epsilon", [0.25, 1.0])
def test_epsilon_is_the_share_of_random_actions_each_as_likely(epsilon: float) -> None:
    policy = make((2, 3))
    policy.epsilon.fill_(epsilon)
    rows = 20_000
    best = policy.act_greedily(seen(rows), None)
    taken = policy.act(seen(rows), None, policy.draw_noise(rows)).action
    same = (taken == best).all(1).float().mean()
    assert float(same) == pytest.approx(1 - epsilon + epsilon / 6, abs=0.015)
    if epsilon == 1:
        counts = torch.bincount(taken[:, 0] * 3 + taken[:, 1], minlength=6) / rows
        assert (counts - 1 / 6).abs().max() < 0.015


def test_what_is_not_allowed_is_never_taken_and_the_rest_all_alike() -> None:
    policy, rows = make((4,)), 8000
    policy.epsilon.fill_(1.0)
    mask = torch.tensor([[True, False, True, True]]).expand(rows, 4)
    taken = policy.act(seen(rows), mask, policy.draw_noise(rows)).action[:, 0]
    shares = torch.bincount(taken, minlength=4) / rows
    assert shares[1] == 0
    assert (shares[[0, 2, 3]] - 1 / 3).abs().max() < 0.03
    assert (policy.act_greedily(seen(rows), mask) != 1).all()


def test_dueling_numbers_are_a_worth_and_gains_of_mean_0() -> None:
    policy = make((2, 3), dueling=True)
    worth = policy(seen())
    raw = policy.judge(policy.encoder(seen()))
    for part in worth.split([2, 3], dim=1):
        torch.testing.assert_close(part.mean(1), raw[:, -1])
    gains = raw[:, :2] - raw[:, :2].mean(1, keepdim=True)
    torch.testing.assert_close(worth[:, :2] - raw[:, -1:], gains)


def test_noise_is_in_the_network_and_none_is_the_mean() -> None:
    policy = make(noisy=True)
    noise = policy.draw_noise(1)[0]
    assert not torch.allclose(policy(seen(), noise), policy(seen()))
    torch.testing.assert_close(policy(seen(), torch.zeros_like(noise)), policy(seen()))
    both = (
        policy(seen(), noise) + policy(seen(), -noise)
    ) / 2  # outer products are even, biases odd
    assert isinstance(policy.judge, NoisyLinear)
    shaped = (noise.sign() * noise.abs().sqrt()).split([8, 3])
    weight = policy.judge.weight_sigma * torch.outer(shaped[1], shaped[0])
    torch.testing.assert_close(both, policy(seen()) + policy.encoder(seen()) @ weight.t())


def test_acting_is_a_function_of_the_noise() -> None:
    for policy in (make(), make(noisy=True)):
        policy.epsilon.fill_(0.5)
        noise = policy.draw_noise(ROWS)
        first, second = (policy.act(seen(), None, noise).action for _ in range(2))
        assert torch.equal(first, second)


def test_what_is_seen_is_scaled_by_the_running_statistics() -> None:
    policy = make(normalize_obs=True)
    plain = make()
    rows = {PLAIN: 5 + 3 * seen()[PLAIN]}
    policy.update_moments({PLAIN: rows[PLAIN][:, None]}, torch.ones(ROWS, 1, dtype=torch.bool))
    assert torch.allclose(policy(rows), plain(policy.normalised(rows)))
    assert not torch.allclose(policy(rows), plain(rows))
