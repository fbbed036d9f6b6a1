"""The micro-batched gradient is the full one, whatever the parts, the head and the rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from stoker.algos import ppo
from stoker.config.schema import NetworkSettings, PPOSettings
from stoker.learn.microbatch import gradient
from stoker.nn.actor_critic import ActorCritic
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec, Loss, Minibatch

ROWS = 23  # a prime: nothing but 1 divides it
LEAVES = {PLAIN: LeafSpec("vector", (3,), "float32"), "kind": LeafSpec("discrete", (), "int64", 5)}
ACTIONS = {
    "discrete": ActionSpec("discrete", (), "int64", (4,), (0,)),
    "masked": ActionSpec("discrete", (), "int64", (4,), (0,)),
    "multi_discrete": ActionSpec("multi_discrete", (2,), "int64", (3, 2), (0, 0)),
    "multi_binary": ActionSpec("multi_binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-1, -1), high=(1, 1)),
}
number = torch.arange(ROWS)
VALID = {
    "all": number >= 0,
    "some": number % 3 != 1,
    "only late ones": number >= 19,  # so that whole parts have none
    "none": number < 0,
}


def make_policy(head: str, dtype: torch.dtype) -> ActorCritic:
    torch.manual_seed(0)
    spec = EnvSpec("test", LEAVES, ACTIONS[head], has_mask=head == "masked")
    network = NetworkSettings(network_arch=(8,), shared_trunk=head == "box")
    policy = ActorCritic(spec, network, normalize_obs=True).to(dtype)
    policy.seed(1, torch.device("cpu"))
    return policy


def make_batch(policy: ActorCritic, head: str, valid: Tensor, dtype: torch.dtype) -> Minibatch:
    """Rows that another policy acted in and judged; those that are not valid hold garbage."""
    random = torch.Generator().manual_seed(3)

    def normal(*tail: int) -> Tensor:
        return torch.randn(ROWS, *tail, generator=random, dtype=dtype)

    obs = {PLAIN: normal(3), "kind": torch.randint(5, (ROWS,), generator=random)}
    mask = (number[:, None] + torch.arange(4)) % 4 != 2 if head == "masked" else None
    action, log_prob = policy.act(obs, mask, policy.draw_noise(ROWS).to(dtype))
    return Minibatch(
        obs=obs,
        action=action,
        action_mask=mask,
        log_prob=torch.where(valid, log_prob + 0.3 * normal(), 1e9),
        importance=torch.where(valid, normal().exp().clamp(max=2), 0.0),
        value=torch.where(valid, normal(), 1e9),
        advantage=torch.where(valid, 5 + 3 * normal(), 0.0),
        value_target=torch.where(valid, 2 * normal(), 1e9),
        valid=valid,
    )


def found(
    policy: ActorCritic, batch: Minibatch, settings: PPOSettings, rows: int
) -> tuple[Loss, dict[str, Tensor]]:
    """The loss and the gradient, `rows` at a time."""
    policy.zero_grad()

    def loss(part: Minibatch) -> Loss:
        given = (part.obs, part.action_mask, part.action)
        now = functional_call(policy, dict(policy.named_parameters()), given)
        return ppo.loss(now, part, torch.tensor(0.2), settings)

    total = gradient(loss, batch, rows)
    gradients = {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
    return Loss(total.total.detach(), total.approx_kl, total.metrics), gradients


EXACTLY = [
    (head, valid, (i + j) % 2 == 0, torch.float64)
    for i, head in enumerate(ACTIONS)
    for j, valid in enumerate(VALID)
]
NEARLY = [
    (head, valid, i % 2 == 0, torch.float32)
    for i, (head, valid) in enumerate(zip(ACTIONS, [*VALID, "all"], strict=True))
]


@pytest.mark.parametrize(("head", "valid", "normalise", "dtype"), EXACTLY + NEARLY)
def test_the_micro_batched_gradient_equals_the_full_one(
    head: str, valid: str, normalise: bool, dtype: torch.dtype
) -> None:
    """And so do the loss, the KL divergence and every metric, with and without value clipping."""
    closeness = 1e-12 if dtype is torch.float64 else 2e-5
    policy = make_policy(head, dtype)
    batch = make_batch(policy, head, VALID[valid], dtype)
    if normalise:
        batch = batch._replace(advantage=ppo.normalised(batch.advantage, batch.valid))
    for clip_range_vf in (None, 0.3):
        settings = PPOSettings(
            n_steps=1, batch_size=1, n_epochs=1, ent_coef=0.01, clip_range_vf=clip_range_vf
        )
        whole = found(policy, batch, settings, ROWS)
        assert bool(any(g.any() for g in whole[1].values())) == (valid != "none")
        for rows in (1, 5, 12, 22):
            parts = found(policy, batch, settings, rows)
            torch.testing.assert_close(parts, whole, rtol=closeness, atol=closeness)


def counting(sizes: list[int]) -> Callable[[Minibatch], Loss]:
    weight = torch.ones((), requires_grad=True)

    def loss(part: Minibatch) -> Loss:
        sizes.append(len(part.valid))
        total = (part.advantage * weight).mean()
        return Loss(total, total.detach(), {})

    return loss


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(1, [1] * 23), (5, [5, 5, 5, 5, 3]), (12, [12, 11]), (22, [22, 1]), (23, [23]), (99, [23])],
)
def test_the_parts_are_as_large_as_asked_for_and_the_last_is_the_rest(
    rows: int, sizes: list[int]
) -> None:
    policy = make_policy("discrete", torch.float32)
    batch = make_batch(policy, "discrete", VALID["all"], torch.float32)
    went: list[int] = []
    gradient(counting(went), batch, rows)
    assert went == sizes
