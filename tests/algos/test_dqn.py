"""Targets and loss of DQN against closed forms, and torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from stoker.algos import dqn
from stoker.nn.heads import Columns
from stoker.types import Transitions


def rows_of(action: list[list[int]], weight: list[float] | None = None) -> Transitions:
    size = len(action)
    nothing = torch.zeros(size)
    weights = torch.ones(size) if weight is None else torch.tensor(weight)
    return Transitions({}, torch.tensor(action), None, nothing, nothing, weights)


def test_the_target_is_the_reward_and_what_the_best_action_is_worth() -> None:
    judged = torch.tensor([[[1.0, 4.0, 2.0]], [[5.0, 3.0, 0.0]]])
    found = dqn.targets(judged, judged, torch.tensor([10.0, 20.0]), torch.tensor([0.5, 0.0]))
    assert found.tolist() == [12.0, 20.0]  # the second terminated


def test_double_judges_what_the_other_network_chose() -> None:
    judged, chosen_by = torch.tensor([[[1.0, 4.0, 2.0]]]), torch.tensor([[[9.0, 4.0, 2.0]]])
    reward, discount = torch.zeros(1), torch.tensor([0.9])
    assert dqn.targets(judged, chosen_by, reward, discount).tolist() == pytest.approx([0.9])


def test_a_choice_that_is_not_allowed_is_not_the_best() -> None:
    columns = Columns((3,))
    mask = torch.tensor([[True, False, True]])
    judged = columns(torch.tensor([[1.0, 4.0, 2.0]]), mask)
    found = dqn.targets(judged, judged, torch.zeros(1), torch.ones(1))
    assert found.tolist() == [2.0]


def test_branches_have_one_target_the_mean_of_their_best() -> None:
    """Columns of 2 and 3 choices; the third of the narrower does not exist."""
    columns = Columns((2, 3))
    judged = columns(torch.tensor([[-7.0, -5.0, 1.0, 2.0, 3.0]]), None)
    assert judged.shape == (1, 2, 3)
    found = dqn.targets(judged, judged, torch.tensor([10.0]), torch.tensor([1.0]))
    assert found.tolist() == [10.0 + (-5.0 + 3.0) / 2]


def test_hubers_loss_by_hand() -> None:
    """Gaps of 0.5 and 3 cost 0.125 and 2.5; weights are no shares."""
    value = torch.tensor([[[0.5, 9.0]], [[9.0, 3.0]]])
    found = dqn.loss(value, torch.zeros(2), rows_of([[0], [1]], [1.0, 0.5]))
    assert float(found.total) == pytest.approx((0.125 + 0.5 * 2.5) / 2)
    assert found.error.tolist() == [0.5, 3.0]
    assert float(found.metrics["train/td_error"]) == 1.75
    assert float(found.metrics["train/q_mean"]) == 1.75


@given(seed=st.integers(0, 10_000), size=st.integers(1, 5), columns=st.integers(1, 3))
def test_it_is_torchs_loss_and_has_its_gradient(seed: int, size: int, columns: int) -> None:
    rng = np.random.default_rng(seed)

    def tensor(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(0, 2, shape))

    value, target = tensor(size, columns, 4).requires_grad_(), tensor(size)
    action = torch.from_numpy(rng.integers(0, 4, (size, columns)))
    weight = torch.from_numpy(rng.random(size))
    batch = rows_of(action.tolist())._replace(weight=weight)
    found = dqn.loss(value, target, batch)
    chosen = value.gather(-1, action[..., None])[..., 0]
    aims = target[:, None].expand_as(chosen)
    plain = (weight[:, None] * F.smooth_l1_loss(chosen, aims, reduction="none")).mean()
    torch.testing.assert_close(found.total, plain)
    (gradient,) = torch.autograd.grad(found.total, value)
    (expected,) = torch.autograd.grad(plain, value)
    torch.testing.assert_close(gradient, expected)


def test_what_is_not_chosen_has_no_gradient() -> None:
    value = torch.zeros(1, 2, 3, requires_grad=True)
    dqn.loss(value, torch.ones(1), rows_of([[2, 0]])).total.backward()
    gradient: Any = value.grad
    assert gradient.ne(0).nonzero().tolist() == [[0, 0, 2], [0, 1, 0]]
