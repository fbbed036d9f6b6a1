"""Weights on their way to the policy that acts: the newest published, whole, and nothing sooner."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from stoker.collect.weights import Weights
from stoker.config.schema import NetworkSettings
from stoker.nn.actor_critic import ActorCritic
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

SPEC = EnvSpec(
    "test",
    {PLAIN: LeafSpec("vector", (3,), "float32")},
    ActionSpec("discrete", (), "int64", (4,), (0,)),
)


def make_policy(seed: int) -> ActorCritic:
    torch.manual_seed(seed)
    return ActorCritic(SPEC, NetworkSettings(network_arch=(8,)), normalize_obs=True)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def learn(policy: ActorCritic) -> None:
    """Move every weight, and the normalisation statistics."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter))
    policy.update_moments({PLAIN: torch.randn(5, 2, 3) * 7}, torch.ones(5, 2, dtype=torch.bool))


def test_before_anything_is_published_the_first_weights_are_taken() -> None:
    learning, acting = make_policy(0), make_policy(1)
    weights, first = Weights(learning, acting), tensors(learning)
    learn(learning)
    assert weights.take() == 0
    assert same(tensors(acting), first)


def test_what_is_taken_is_what_was_last_published_with_its_version() -> None:
    learning, acting = make_policy(0), make_policy(1)
    weights = Weights(learning, acting)
    for version in (1, 2, 7):
        learn(learning)
        weights.publish(version)
    published = tensors(learning)
    assert "moments.0.mean" in published  # normalisation statistics are among them
    learn(learning)  # not published
    assert weights.take() == 7
    assert same(tensors(acting), published)
    assert not same(tensors(acting), tensors(learning))
    assert weights.take() == 7  # it stays there to be taken again
    assert same(tensors(acting), published)


def test_acting_weights_do_not_move_between_takes() -> None:
    learning, acting = make_policy(0), make_policy(1)
    weights = Weights(learning, acting)
    weights.take()
    before, noise = tensors(acting), acting.draw_noise(2)
    obs = {PLAIN: torch.randn(2, 3)}
    decided = acting.act(obs, None, noise)
    learn(learning)
    weights.publish(1)
    assert same(tensors(acting), before)
    assert torch.equal(acting.act(obs, None, noise).log_prob, decided.log_prob)
    weights.take()
    assert not same(tensors(acting), before)
    after = tensors(learning)
    learn(acting)
    assert same(tensors(learning), after)  # nor does anything go the other way


def test_taken_weights_act_as_the_published_ones_would() -> None:
    learning, acting = make_policy(0), make_policy(1)
    weights = Weights(learning, acting)
    learn(learning)
    weights.publish(1)
    weights.take()
    obs, noise = {PLAIN: torch.randn(50, 3)}, acting.draw_noise(50)
    for mine, theirs in zip(
        acting.act(obs, None, noise), learning.act(obs, None, noise), strict=True
    ):
        assert torch.equal(mine, theirs)
    assert torch.equal(acting.value(obs), learning.value(obs))


def test_nobody_takes_half_of_a_publication() -> None:
    """While one thread publishes weights that are all alike, another sees only such."""
    learning, acting = nn.Linear(200, 200), nn.Linear(200, 200)
    with torch.no_grad():
        for parameter in learning.parameters():
            parameter.zero_()
    weights, done = Weights(learning, acting), threading.Event()

    def publish() -> None:
        for version in range(1, 200):
            with torch.no_grad():
                for parameter in learning.parameters():
                    parameter.fill_(version)
            weights.publish(version)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    last = 0
    while not done.is_set():
        version = weights.take()
        assert version >= last
        last = version
        for parameter in acting.parameters():
            assert (parameter == version).all()
    thread.join()
    assert weights.take() == 199
