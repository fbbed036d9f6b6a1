"""Acting and learning without modules and autograd: the same as with them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from stoker.config import resolve
from stoker.kernels.descent import FlatDescent
from stoker.learn.q_learner import OneByOne, QUpdates
from stoker.nn.q_network import QNetwork
from stoker.train.by_hand import JUDGED, PolicyByHand, is_plain, quickly
from stoker.train.policies import make_policy
from stoker.train.q_by_hand import QByHand
from stoker.train.replaying import _gradient_by_autograd
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec, Transitions

CPU = torch.device("cpu")
RATE = torch.tensor(0.01)
ROWS = 8


def spec_of(*nvec: int, mask: bool = False) -> EnvSpec:
    kind = "discrete" if len(nvec) == 1 else "multi_discrete"
    action = ActionSpec(kind, (), "int64", nvec=nvec, start=(0,) * len(nvec))
    return EnvSpec("made up", {PLAIN: LeafSpec("vector", (5,), "float32")}, action, mask)


def policy_of(spec: EnvSpec, algo: str = "dqn", **settings: Any) -> Any:
    given = {"algo": algo, "env": "x:y", "network_arch": "16,8", "device": "cpu", **settings}
    policy = make_policy(spec, resolve(given, on_gpu=False), CPU, seed=3)
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():  # biases begin as 0
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


def mask_of(spec: EnvSpec, rows: int) -> torch.Tensor | None:
    if not spec.has_mask:
        return None
    allowed = torch.rand(rows, sum(spec.action.nvec)) < 0.5
    allowed[:, np.cumsum([0, *spec.action.nvec[:-1]])] = True  # one at least of each column
    return allowed


SPECS = [spec_of(3), spec_of(2, 4, 3), spec_of(4, mask=True), spec_of(3, 2, mask=True)]


def _replace(parameter: torch.nn.Parameter) -> None:
    """Put another tensor in its place, as `torch.nn.utils.vector_to_parameters` does."""
    parameter.data = -0.5 * parameter.data


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.action.nvec}{spec.has_mask}")
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize("settings", [{}, {"normalize_obs": True, "activation": "tanh"}])
@pytest.mark.parametrize("rows", [ROWS, 3])
def test_acting_by_hand_is_acting(
    spec: EnvSpec, algo: str, settings: dict[str, Any], rows: int
) -> None:
    policy = policy_of(spec, algo, **settings)
    if algo == "dqn":
        policy.epsilon.fill_(0.3)
    quick = quickly(policy, ROWS)
    assert isinstance(quick, PolicyByHand)
    assert quick.generator is policy.generator
    obs, mask = {PLAIN: torch.randn(rows, 5)}, mask_of(spec, rows)
    policy.update_moments({PLAIN: torch.randn(4, rows, 5)}, torch.ones(4, rows, dtype=torch.bool))
    noise = quick.draw_noise(rows)
    expected, found = policy.act(obs, mask, noise), quick.act(obs, mask, noise)
    assert torch.equal(found.action, expected.action)
    torch.testing.assert_close(found.log_prob, expected.log_prob)
    for change in (lambda p: p.data.mul_(-1.0), _replace):  # it acts by the weights of now
        for parameter in policy.parameters():
            change(parameter)
        assert torch.equal(quick.act(obs, mask, noise).action, policy.act(obs, mask, noise).action)
    torch.testing.assert_close(quick.value(obs), policy.value(obs))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.action.nvec}{spec.has_mask}")
@pytest.mark.parametrize("settings", [{}, {"normalize_obs": True, "activation": "tanh"}])
@pytest.mark.parametrize("shared", [False, True])
def test_judging_by_hand_is_judging(spec: EnvSpec, settings: dict[str, Any], shared: bool) -> None:
    """Of more rows than go through the network at once, too."""
    policy = policy_of(spec, "ppo", shared_trunk=shared, **settings)
    quick, rows = quickly(policy, ROWS), 2 * JUDGED + 3
    obs, mask = {PLAIN: torch.randn(rows, 5)}, mask_of(spec, rows)
    action = policy.act(obs, mask, policy.draw_noise(rows)).action
    for change in (lambda p: None, lambda p: p.data.mul_(-1.0), _replace):
        for parameter in policy.parameters():
            change(parameter)
        torch.testing.assert_close(quick.value(obs), policy.value(obs))
        found, expected = quick.appraise(obs, mask, action), policy.appraise(obs, mask, action)
        torch.testing.assert_close(found, expected)
    few = {PLAIN: obs[PLAIN][: JUDGED - 1]}
    assert torch.equal(quick.value(few), policy.value(few)), "padding would cost more"


@pytest.mark.parametrize("kind", ["box", "multi_binary"])
def test_acting_by_hand_is_acting_where_there_are_no_choices(kind: Any) -> None:
    action = ActionSpec(kind, (3,), "float32")
    spec = EnvSpec("made up", {PLAIN: LeafSpec("vector", (5,), "float32")}, action, False)
    policy = policy_of(spec, "ppo")
    quick = quickly(policy, ROWS)
    obs, noise = {PLAIN: torch.randn(JUDGED, 5)}, quick.draw_noise(JUDGED)
    for change in (None, lambda p: p.data.mul_(-1.0), _replace):
        for parameter in policy.parameters() if change else ():
            change(parameter)
        expected, found = policy.act(obs, None, noise), quick.act(obs, None, noise)
        assert found.action.dtype == expected.action.dtype
        torch.testing.assert_close(found.action, expected.action)
        torch.testing.assert_close(found.log_prob, expected.log_prob)
        judged = quick.appraise(obs, None, found.action)
        torch.testing.assert_close(judged, policy.appraise(obs, None, found.action))


def test_numbers_out_of_bounds_are_no_reason_to_warn() -> None:
    """A draw may be 0, and weights that are not finite are somebody else's to tell of."""
    policy = policy_of(spec_of(3), "ppo", normalize_obs=True)
    policy.update_moments({PLAIN: 0.1 * torch.randn(4, 2, 5)}, torch.ones(4, 2) > 0)
    quick, noise = quickly(policy, ROWS), policy.draw_noise(ROWS)
    noise[:, 0, 1] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = quick.act({PLAIN: torch.randn(ROWS, 5)}, None, noise)
        assert (output.action == 1).all(), "the exponential number that is least wins"
        most = torch.full((ROWS, 5), torch.finfo(torch.float32).max)
        quick.act({PLAIN: most}, None, noise)
        policy.decide.weight.data[:] = math.nan
        assert quick.act({PLAIN: torch.randn(ROWS, 5)}, None, noise).log_prob.isnan().all()


def test_who_is_not_plain_acts_as_ever() -> None:
    policy = policy_of(spec_of(3), dueling=True)
    assert not is_plain(policy)
    assert quickly(policy, ROWS) is policy


def transitions(spec: EnvSpec, updates: int) -> Transitions:
    rows, nvec = updates * ROWS, spec.action.nvec
    return Transitions(
        {PLAIN: torch.randn(2 * rows, 5)},
        torch.stack([torch.randint(0, n, (rows,)) for n in nvec], 1),
        mask_of(spec, rows),
        torch.randn(rows),
        torch.where(torch.rand(rows) < 0.2, 0.0, 0.97),
        torch.rand(rows) + 0.1,
    )


def result_of(updates: QUpdates, batch: Transitions) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all of them, made without a pause."""
    under_way, number = updates(batch, None, RATE), 0
    with updates.within():
        while True:
            try:
                next(under_way)
                number += 1
            except StopIteration as ended:
                assert number * ROWS == len(batch.reward)
                return ended.value


def learned(
    spec: EnvSpec, batch: Transitions, double: bool, by_hand: bool, most_norm: float = 0.5
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """The weights after updates along `batch`, each row's error, and which updates were made."""
    policy, target = policy_of(spec), policy_of(spec)
    assert isinstance(policy, QNetwork)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(1.2)
    descent = FlatDescent(dict(policy.named_parameters()), 1e-8, most_norm)
    if by_hand:
        error, made = result_of(QByHand(policy, target, descent, ROWS, double), batch)
    else:
        updates = OneByOne(_gradient_by_autograd(policy, target, double), descent)
        each = [result_of(updates, part) for part in parts_of(batch)]
        error, made = torch.cat([e for e, _ in each]), torch.stack([m for _, m in each])
    return {name: p.detach().clone() for name, p in policy.named_parameters()}, error, made


def parts_of(batch: Transitions) -> list[Transitions]:
    """The minibatches of some updates."""
    count = len(batch.reward) // ROWS
    now, then = (half.split(ROWS) for half in batch.obs[PLAIN].chunk(2))
    mask = [None] * count if batch.next_mask is None else batch.next_mask.split(ROWS)
    rest = (batch.action, batch.reward, batch.discount, batch.weight)
    action, reward, discount, weight = (field.split(ROWS) for field in rest)
    return [
        Transitions(
            {PLAIN: torch.cat((now[i], then[i]))},
            action[i],
            mask[i],
            reward[i],
            discount[i],
            weight[i],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.action.nvec}{spec.has_mask}")
@pytest.mark.parametrize("double", [False, True])
def test_many_updates_by_hand_are_as_many_by_autograd(spec: EnvSpec, double: bool) -> None:
    """Also for columns of other widths, for masks, and for gradients that are clipped or not."""
    torch.manual_seed(5)
    batch = transitions(spec, updates=9)
    for most_norm in (0.05, 100.0):
        found, error, made = learned(spec, batch, double, True, most_norm)
        expected, its_error, its_made = learned(spec, batch, double, False, most_norm)
        assert made.tolist() == its_made.tolist() == [True] * 9
        torch.testing.assert_close(error, its_error, rtol=1e-3, atol=1e-4)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_or_has_no_row_is_not_made(double: bool, bad: float) -> None:
    torch.manual_seed(6)
    spec = spec_of(3)
    batch = transitions(spec, updates=3)
    batch.reward[ROWS] = bad
    batch.weight[2 * ROWS :] = 0.0
    found, error, made = learned(spec, batch, double, True)
    assert made.tolist() == [True, False, False]
    one = Transitions(
        {PLAIN: torch.cat([half[:ROWS] for half in batch.obs[PLAIN].chunk(2)])},
        *(None if field is None else field[:ROWS] for field in batch[1:]),
    )
    expected, _, _ = learned(spec, one, double, True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert not error[ROWS].isfinite()
