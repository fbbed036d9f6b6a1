"""The shuffle: each row once, no order left, and the kernel's order is its twin's."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from stoker.kernels import shuffle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def orders(rows: int, keys: int) -> Tensor:
    """How `rows` rows of one environment are shuffled under so many keys, [keys, rows]."""
    low, high = shuffle.epoch_keys(torch.arange(keys), 1)
    few = max(1, 2**14 // rows)  # at a time: what a core holds near
    return torch.cat(
        [
            shuffle.permuted(torch.arange(rows), *words, *shuffle.radices(rows))
            for words in zip(low[0].split(few), high[0].split(few), strict=True)
        ]
    )


@functools.cache
def many_orders(rows: int) -> Tensor:
    """As `orders`, of a few million rows in all: made once, since they take a second or two."""
    return orders(rows, {64: 50_000, 80: 20_000, 256: 20_000, 4096: 781}[rows])


def excess(counts: Tensor) -> float:
    """How many deviations chi-square lies above what it is where all counts are equally likely."""
    expected = counts.float().mean()
    freedom = counts.numel() - 1
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def test_radices_multiply_to_the_rows() -> None:
    assert shuffle.radices(64) == (8, 8)
    assert shuffle.radices(6 * 35) == (14, 15)
    assert shuffle.radices(13) == (1, 13)
    assert shuffle.radices(2**19) == (512, 1024)


def test_rows_with_a_small_radix_are_to_be_sorted() -> None:
    assert shuffle.usable(64)
    assert not shuffle.usable(7 * 1009)
    assert not shuffle.usable(997)


@pytest.mark.parametrize("rows", [64, 72, 210, 1000, 1024, 2310, 12_288, 131_072, 7 * 13, 31])
def test_each_row_comes_once(rows: int) -> None:
    for order in orders(rows, 5):
        assert torch.equal(order.sort().values, torch.arange(rows))


@pytest.mark.parametrize("rows", [64, 80, 256])
def test_every_position_takes_every_row_equally_often(rows: int) -> None:
    taken = torch.arange(rows) * rows + many_orders(rows)
    counts = torch.bincount(taken.flatten(), minlength=rows**2).view(rows, rows).float()
    assert abs(excess(counts)) < 6
    assert max(abs(excess(row)) for row in counts) < 6


@pytest.mark.parametrize("rows", [64, 256, 4096])
def test_neighbours_are_spread(rows: int) -> None:
    """The distance from a row to the next one in the order is as good as any."""
    found = many_orders(rows)
    apart = (found[:, 1:] - found[:, :-1]) % rows
    assert abs(excess(torch.bincount(apart.flatten(), minlength=rows)[1:])) < 6


@pytest.mark.parametrize("rows", [64, 4096])
def test_rows_that_were_neighbours_are_parted(rows: int) -> None:
    place = many_orders(rows).argsort(1)
    apart = (place[:, 1:] - place[:, :-1]) % rows
    assert abs(excess(torch.bincount(apart.flatten(), minlength=rows)[1:])) < 6


def test_epochs_and_agents_have_orders_of_their_own_in_their_own_rows() -> None:
    n, steps, agents, epochs = 8, 16, 3, 4
    keys = torch.tensor([5, -(2**62), 2**40 + 5])
    advantage = torch.arange(steps * agents * n).float().view(steps, -1)
    index, _ = shuffle.shuffled(keys, epochs, n, steps, advantage, 4)
    assert index.dtype == torch.int32
    mine = torch.arange(steps * agents * n).view(steps, agents, n).transpose(0, 1).flatten(1)
    assert index.shape == (epochs, 4, agents, steps * n // 4)
    order = index.transpose(1, 2).flatten(2)
    assert torch.equal(order.long().sort(-1).values, mine.expand(epochs, -1, -1))
    local = order - order.min(-1, keepdim=True).values
    assert len({tuple(order.tolist()) for order in local.flatten(0, 1)}) == epochs * agents


def test_the_spread_is_of_each_minibatchs_advantages() -> None:
    n, steps, minibatches = 96, 48, 2
    advantage = torch.randn(steps, 2 * n)
    index, spread = shuffle.shuffled(torch.arange(2), 3, n, steps, advantage, minibatches)
    assert spread.shape == (3, minibatches, 2, 3, 3)
    assert spread[0, 0, 0, :, 0].tolist() == [1024, 1024, 256]
    chosen = advantage.flatten()[index.long()]
    count, mean, squares = spread.unbind(-1)
    of_all = (count * mean).sum(-1) / count.sum(-1)
    torch.testing.assert_close(of_all, chosen.mean(-1))
    total = (squares + count * (mean - of_all[..., None]) ** 2).sum(-1)
    torch.testing.assert_close(total / count.sum(-1), chosen.var(-1, correction=0))


def test_minibatches_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="5 minibatches do not divide 8 x 8 rows"):
        shuffle.shuffled(torch.arange(1), 1, 8, 8, torch.zeros(8, 8), 5)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("agents", "n", "steps", "minibatches"),
    [(1, 8, 8, 1), (3, 10, 12, 2), (2, 48, 48, 2), (1, 256, 16, 2)],
)
def test_the_kernel_shuffles_as_its_twin(agents: int, n: int, steps: int, minibatches: int) -> None:
    """In a part or two of a minibatch, whole or not."""
    from stoker.kernels import shuffle_on_gpu

    keys = torch.tensor([-3, 2**63 - 1, 2**33])[:agents]
    advantage = torch.randn(steps, agents * n, generator=torch.Generator().manual_seed(0))
    expected = shuffle.shuffled_twin(keys, 2, n, steps, advantage, minibatches)
    found = shuffle_on_gpu.shuffled(keys.to(DEVICE), 2, n, steps, advantage.to(DEVICE), minibatches)
    assert torch.equal(found[0].cpu(), expected[0])
    torch.testing.assert_close(found[1].cpu(), expected[1], rtol=1e-5, atol=1e-5)
