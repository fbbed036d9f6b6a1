"""The actor-critic: how it begins, what acting and judging agree on, and what it normalises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker.config.schema import NetworkSettings
from stoker.nn.actor_critic import ActorCritic
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

VECTOR = {PLAIN: LeafSpec("vector", (3,), "float32")}
ACTIONS = {
    "discrete": ActionSpec("discrete", (), "int64", (4,), (0,)),
    "multi_discrete": ActionSpec("multi_discrete", (2,), "int64", (3, 2), (0, 0)),
    "multi_binary": ActionSpec("multi_binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-1, -1), high=(1, 1)),
}
each_action = pytest.mark.parametrize("action", ACTIONS)


def make_policy(
    action: str = "discrete",
    leaves: dict[str, LeafSpec] | None = None,
    normalize_obs: bool = True,
    **network: Any,
) -> ActorCritic:
    torch.manual_seed(0)
    spec = EnvSpec("test", leaves or VECTOR, ACTIONS[action])
    settings = NetworkSettings(**{"network_arch": (16, 8), **network})
    policy = ActorCritic(spec, settings, normalize_obs)
    policy.seed(1, torch.device("cpu"))
    return policy


def count(policy: ActorCritic) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())


def observed(rows: int = 6) -> dict[str, Tensor]:
    return {PLAIN: torch.randn(rows, 3, generator=torch.Generator().manual_seed(4))}


TRUNK = (3 * 16 + 16) + (16 * 8 + 8)
LAST = (8 * 4 + 4) + (8 + 1)


def test_a_shared_trunk_counts_once_and_separate_ones_twice() -> None:
    assert count(make_policy(shared_trunk=True)) == TRUNK + LAST
    assert count(make_policy(shared_trunk=False)) == 2 * TRUNK + LAST


def test_the_value_reaches_the_actors_trunk_only_where_it_is_shared() -> None:
    for shared in (True, False):
        policy = make_policy(shared_trunk=shared)
        evaluation = policy(observed(), None, torch.zeros(6, 1, dtype=torch.int64))
        evaluation.value.sum().backward()
        assert (policy.actor.trunk[0].weight.grad is not None) == shared


def test_weights_begin_orthogonal_and_biases_at_zero_past_the_first_layer() -> None:
    leaves = {"a": VECTOR[PLAIN], "b": LeafSpec("image", (8, 8, 3), "uint8")}
    policy = make_policy(leaves=leaves)
    layers = [m for m in policy.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(layers) == 2 * (2 + 1 + 2) + 2
    gains = {policy.decide: 0.01, policy.judge: 1.0}
    first = [policy.actor.trunk[0], policy.critic.trunk[0]]
    for layer in [layer for layer in layers if layer not in first]:
        rows = layer.weight.detach().flatten(1)
        rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
        square = gains.get(layer, math.sqrt(2)) ** 2
        torch.testing.assert_close(rows @ rows.T, square * torch.eye(len(rows)), atol=1e-5, rtol=0)
        assert (layer.bias == 0).all()


def test_a_new_policy_is_not_an_odd_function() -> None:
    """With f(-x) = -f(x) it would have no feature in which one input weighs another."""
    policy = make_policy()
    there, back = (policy.actor({PLAIN: sign * observed()[PLAIN]}) for sign in (1.0, -1.0))
    assert ((there + back).abs().mean(0) > 1e-3).all()


def test_the_first_actions_are_nearly_uniform() -> None:
    evaluation = make_policy()(observed(), None, torch.zeros(6, 1, dtype=torch.int64))
    torch.testing.assert_close(evaluation.entropy, torch.full((6,), math.log(4)), atol=1e-3, rtol=0)


def test_orthogonal_weights_can_be_declined() -> None:
    weight = make_policy(ortho_init=False).actor.trunk[2].weight.detach()
    assert not torch.allclose(weight @ weight.T, 2 * torch.eye(8), atol=0.1)


@each_action
@pytest.mark.parametrize("shared_trunk", [True, False])
def test_acting_and_judging_agree(action: str, shared_trunk: bool) -> None:
    """The ratio of a policy to itself is 1; both ways to its value lead to the same one."""
    policy = make_policy(action, shared_trunk=shared_trunk)
    obs = observed()
    output = policy.act(obs, None, policy.draw_noise(6))
    evaluation = policy(obs, None, output.action)
    assert output.action.shape == (6, ACTIONS[action].width)
    torch.testing.assert_close(output.log_prob, evaluation.log_prob.detach(), rtol=0, atol=0)
    torch.testing.assert_close(policy.value(obs), evaluation.value.detach(), rtol=0, atol=0)
    assert not any(x.requires_grad for x in output)


@each_action
def test_the_same_seed_acts_the_same(action: str) -> None:
    first, second = make_policy(action), make_policy(action)
    noises = [policy.draw_noise(6) for policy in (first, second)]
    assert torch.equal(*noises)
    assert not torch.equal(first.draw_noise(6), noises[0])
    outputs = [p.act(observed(), None, n) for p, n in zip((first, second), noises, strict=True)]
    for mine, theirs in zip(*outputs, strict=True):
        assert torch.equal(mine, theirs)


def test_greedy_takes_the_likeliest_action_that_is_allowed() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.decide.weight.zero_()
        policy.decide.bias.copy_(torch.tensor([1.0, 4.0, 3.0, 2.0]))
    mask = torch.tensor([[True, False, True, True]]).expand(6, -1)
    assert (policy.act_greedily(observed(), None) == 1).all()
    assert (policy.act_greedily(observed(), mask) == 2).all()


def test_masks_reach_acting_and_judging() -> None:
    policy = make_policy()
    mask = torch.tensor([[False, True, False, False]]).expand(6, -1)
    output = policy.act(observed(), mask, policy.draw_noise(6))
    assert (output.action == 1).all()
    assert (output.log_prob == 0).all()
    assert (policy(observed(), mask, output.action).entropy == 0).all()


def as_rollout(obs: Tensor) -> dict[str, Tensor]:
    return {PLAIN: obs.unflatten(0, (-1, 2))}


def test_scaled_observations_look_the_same_once_the_moments_know_them() -> None:
    """Metres or millimetres, from here or from there: the same policy."""
    policies = [make_policy(), make_policy()]
    raw = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
    moved = raw * torch.tensor([1000.0, 0.01, 5.0]) + torch.tensor([50.0, -3.0, 0.0])
    before = [p.value({PLAIN: x}) for p, x in zip(policies, (raw, moved), strict=True)]
    assert not torch.allclose(*before, atol=1e-2)
    valid = torch.ones(20, 2, dtype=torch.bool)
    for policy, obs in zip(policies, (raw, moved), strict=True):
        policy.update_moments(as_rollout(obs), valid)
    after = [p.value({PLAIN: x}) for p, x in zip(policies, (raw, moved), strict=True)]
    torch.testing.assert_close(*after, atol=1e-4, rtol=0)


def test_acting_moves_no_moments() -> None:
    policy = make_policy()
    known = {name: value.clone() for name, value in policy.named_buffers()}
    policy.act(observed(), None, policy.draw_noise(6))
    policy(observed(), None, torch.zeros(6, 1, dtype=torch.int64))
    for name, value in policy.named_buffers():
        assert torch.equal(value, known[name]), name


def test_invalid_rows_leave_the_moments_alone() -> None:
    policy = make_policy()
    obs = torch.ones(4, 2, 3)
    obs[1, 0] = 1e9
    valid = torch.ones(4, 2, dtype=torch.bool)
    valid[1, 0] = False
    policy.update_moments({PLAIN: obs}, valid)
    (moments,) = policy.moments.values()
    torch.testing.assert_close(moments.mean, torch.ones(3, dtype=torch.float64))
    assert moments.count == 7


def test_only_vectors_are_normalised_each_by_its_own_moments() -> None:
    leaves = {
        "image": LeafSpec("image", (6, 6), "uint8"),
        "x.position": LeafSpec("vector", (2,), "float32"),
        "kind": LeafSpec("discrete", (), "int64", n=3),
        "table": LeafSpec("vector", (2, 2), "float32"),
        "scalar": LeafSpec("vector", (), "float32"),
    }
    policy = make_policy(leaves=leaves)
    obs = {
        "image": torch.full((4, 2, 6, 6), 200, dtype=torch.uint8),
        "x.position": torch.full((4, 2, 2), 10.0),
        "kind": torch.full((4, 2), 2),
        "table": torch.full((4, 2, 2, 2), 20.0),
        "scalar": torch.full((4, 2), 30.0),
    }
    policy.update_moments(obs, torch.ones(4, 2, dtype=torch.bool))
    means = [moments.mean.tolist() for moments in policy.moments.values()]
    assert means == [[10.0] * 2, [20.0] * 4, [30.0]]
    flat = {name: value.flatten(0, 1) for name, value in obs.items()}
    assert policy.act(flat, None, policy.draw_noise(8)).log_prob.shape == (8,)
    assert policy.value(flat).shape == (8,)


def test_observations_can_be_left_as_they_are() -> None:
    policy = make_policy(normalize_obs=False)
    policy.update_moments(as_rollout(torch.randn(4, 3)), torch.ones(2, 2, dtype=torch.bool))
    assert not list(policy.moments)
    expected = policy.judge(policy.critic(observed())).squeeze(-1)
    torch.testing.assert_close(policy.value(observed()), expected.detach())


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_a_state_dict_brings_a_policy_back(shared_trunk: bool) -> None:
    trained, fresh = make_policy(shared_trunk=shared_trunk), make_policy(shared_trunk=shared_trunk)
    trained.update_moments(as_rollout(torch.randn(4, 3)), torch.ones(2, 2, dtype=torch.bool))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    assert not torch.equal(fresh.value(observed()), trained.value(observed()))
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.value(observed()), trained.value(observed()))
