"""Distributions by hand: what `nn.heads` says of them, and what autograd says of their slopes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from stoker.kernels.plain_heads import PlainHead
from stoker.nn.heads import BernoulliHead, CategoricalHead, GaussianHead, Head
from stoker.train.by_hand import plain_head

ROWS = 40


class Case(NamedTuple):
    head: Head
    masked: bool = False


def case_of(name: str) -> Case:
    return {
        "one column": lambda: Case(CategoricalHead((4,))),
        "one column, masked": lambda: Case(CategoricalHead((4,)), True),
        "columns": lambda: Case(CategoricalHead((3, 3))),
        "columns of other widths, masked": lambda: Case(CategoricalHead((2, 5, 3)), True),
        "coins": lambda: Case(BernoulliHead(3)),
        "gaussian": lambda: Case(GaussianHead(3, -0.7)),
    }[name]()


NAMES = ("one column", "one column, masked", "columns", "columns of other widths, masked")
NAMES += ("coins", "gaussian")


def drawn(case: Case, seed: int = 3) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Raw outputs, what is allowed, noise, and the actions that follow."""
    random = torch.Generator().manual_seed(seed)
    raw = 2 * torch.randn(ROWS, case.head.raw_width, generator=random)
    mask = None
    if case.masked:
        mask = torch.rand(raw.shape, generator=random) < 0.5
        starts = case.head.columns.place[:, 0]
        mask[:, starts] = True
    noise = case.head.draw_noise(ROWS, random)
    with torch.no_grad():
        return raw, mask, noise, case.head.sample(raw, mask, noise)[0]


def by_hand(case: Case) -> PlainHead:
    for parameter in case.head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return plain_head(case.head)


@pytest.mark.parametrize("name", NAMES)
def test_it_draws_what_the_module_draws(name: str) -> None:
    case = case_of(name)
    raw, mask, noise, action = drawn(case)
    with torch.no_grad():
        expected = case.head.sample(raw, mask, noise)[1]
    found, log_prob = by_hand(case).sample(
        raw.numpy(), None if mask is None else mask.numpy(), noise.numpy()
    )
    torch.testing.assert_close(torch.from_numpy(found), action)
    torch.testing.assert_close(torch.from_numpy(log_prob), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("of_entropy", [0.0, 0.1])
def test_its_slope_is_autograds(name: str, of_entropy: float) -> None:
    case = case_of(name)
    raw, mask, _, action = drawn(case)
    random = torch.Generator().manual_seed(9)
    by_log_prob = torch.randn(ROWS, generator=random)
    by_entropy = of_entropy * torch.randn(ROWS, generator=random)

    asked = raw.clone().requires_grad_()
    log_prob, entropy = case.head.measure(asked, mask, action)
    wanted = [asked, *case.head.parameters()]
    total = (by_log_prob * log_prob + by_entropy * entropy).sum()
    expected = torch.autograd.grad(total, wanted)

    plain, slope = by_hand(case), torch.full_like(raw, torch.nan).numpy()
    laid_out = plain.laid_out(action.numpy())
    measured = plain.measure(raw.numpy(), None if mask is None else mask.numpy(), laid_out)
    plain.slope(by_log_prob.numpy(), by_entropy.numpy(), slope)

    for mine, other in zip(measured, (log_prob, entropy), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), other.detach())
    found = [torch.from_numpy(slope), *(p.grad for p in case.head.parameters())]
    torch.testing.assert_close(found, list(expected))
    if mask is not None:
        assert not slope[~mask.numpy()].any(), "what is not allowed is not pulled at"
