"""The kernels of the sum tree against their twins, and against sums in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stoker.kernels.sum_tree import SumTree

pytestmark = pytest.mark.usefixtures("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = (1, 63, 64, 65, 700, 5000)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def tree_of(weights: Tensor) -> SumTree:
    """By the twin, on the CPU."""
    tree = SumTree(len(weights), torch.device("cpu"))
    tree.set(torch.arange(len(weights)), weights)
    return tree


def drawn(tree: SumTree, noise: Tensor) -> tuple[Tensor, Tensor]:
    from stoker.kernels import sum_tree_on_gpu

    given = (tree._whole.to(DEVICE), tree._downwards.to(DEVICE), noise.to(DEVICE))
    row, weight = sum_tree_on_gpu.draw(*given)
    return row.cpu(), weight.cpu()


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_whole_weights_are_those_of_the_twin(size: int) -> None:
    """Whole numbers are added without rounding, so that both find the same."""
    tree = tree_of((numbers(size) * 5).floor())
    noise = numbers(3, 32, seed=1)
    row, weight = drawn(tree, noise)
    expected, expected_weight = tree.draw(noise)
    assert torch.equal(row, expected)
    assert torch.equal(weight, expected_weight)


@pytest.mark.parametrize("size", SIZES)
def test_a_row_lies_where_its_share_of_the_sum_does(size: int) -> None:
    weights = numbers(size) ** 8  # some far larger than others
    weights[numbers(size, seed=2) < 0.5] = 0.0
    weights[size // 2] = 1e-3  # so that there is one
    tree, noise = tree_of(weights), numbers(128, seed=1)
    row, weight = drawn(tree, noise)
    assert torch.equal(weight, weights[row])
    assert (weight > 0).all()
    sums = weights.double().cumsum(0)
    mass = (torch.arange(128) + noise.double()) * sums[-1] / 128
    near = 1e-4 * sums[-1]
    assert (mass < sums[row] + near).all()
    assert (mass > sums[row] - weights[row] - near).all()


def test_where_nothing_has_a_weight_it_is_the_first() -> None:
    row, weight = drawn(tree_of(torch.zeros(5000)), numbers(8))
    assert row.tolist() == [0] * 8
    assert weight.tolist() == [0.0] * 8


@pytest.mark.parametrize("size", SIZES)
def test_parents_are_summed_as_by_the_twin(size: int) -> None:
    from stoker.kernels import sum_tree_on_gpu

    before, after = numbers(size), numbers(size, seed=1)
    row = torch.randint(size, (40,), generator=torch.Generator().manual_seed(2))
    row = torch.cat([row, row[:5]])  # some twice
    expected, tree = tree_of(before), tree_of(before)
    expected.set(row, after[row])
    tree.levels[0][row] = after[row]
    levels = [level.to(DEVICE) for level in tree.levels]
    sum_tree_on_gpu.sum_up(levels, row.to(DEVICE))
    for found, wanted in zip(levels, expected.levels, strict=True):
        torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("made", [True, False])
def test_rows_are_weighed_as_by_the_twin(made: bool) -> None:
    from stoker.kernels import sum_tree_on_gpu

    size, was_made = 700, torch.tensor(made)
    row, error = torch.arange(0, size, 2), 4 * numbers(350, seed=1) - 2
    error[3] = 0.0
    expected, highest = tree_of(numbers(size)), torch.tensor(0.7)
    weights, high = expected.levels[0].clone().to(DEVICE), highest.to(DEVICE)
    if high is highest:
        high = highest.clone()
    expected.weigh(row, error, was_made, 1e-6, 0.6, highest)
    given = (row.to(DEVICE), error.to(DEVICE), was_made.to(DEVICE))
    sum_tree_on_gpu.weigh(weights, *given, 1e-6, 0.6, high)
    torch.testing.assert_close(weights.cpu(), expected.levels[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(high.cpu(), highest, rtol=1e-5, atol=0)


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_are_what_runs() -> None:
    tree = SumTree(5000, DEVICE)
    assert tree._on_gpu is not None
    weights = (numbers(5000) * 5).floor()
    tree.set(torch.arange(5000, device=DEVICE), weights.to(DEVICE))
    noise = numbers(64, seed=1)
    assert torch.equal(tree.draw(noise.to(DEVICE))[0].cpu(), tree_of(weights).draw(noise)[0])
