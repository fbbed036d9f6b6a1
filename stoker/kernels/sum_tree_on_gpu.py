"""The sum tree of `sum_tree` in Triton."""

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHILDREN = tl.constexpr(64)
_ROWS = 16  # of a program


@triton.jit(do_not_specialize=["n", "size", "depth"])  # else some sizes would be built amid a run
def _draw(whole, downwards, noise, row, weight, n, size, depth, rows: tl.constexpr):
    """Go down from the top. What is found has a weight, however sums are rounded."""
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    here = number < n
    child = tl.arange(0, _CHILDREN)
    total = tl.sum(tl.load(whole + tl.load(downwards) + child))
    mass = ((number % size).to(tl.float32) + tl.load(noise + number, here, 0.0)) * (total / size)
    node = tl.zeros([rows], tl.int64)
    found = tl.zeros([rows], tl.float32)
    for level in range(depth):
        place = tl.load(downwards + level) + node[:, None] * _CHILDREN + child[None, :]
        weights = tl.load(whole + place)
        sums = tl.cumsum(weights, 1)
        passed = (sums > mass[:, None]) & (weights > 0)
        first = tl.min(tl.where(passed, child[None, :], _CHILDREN), 1)
        last = tl.max(tl.where(weights > 0, child[None, :], 0), 1)
        chosen = tl.where(first < _CHILDREN, first, last)
        is_chosen = child[None, :] == chosen[:, None]
        mass -= tl.sum(tl.where(is_chosen, sums - weights, 0.0), 1)
        mass = tl.maximum(mass, 0.0)
        found = tl.sum(tl.where(is_chosen, weights, 0.0), 1)
        node = node * _CHILDREN + chosen
    tl.store(row + number, node, here)
    tl.store(weight + number, found, here)


@triton.jit(do_not_specialize=["n", "reach"])
def _sum_up(below, above, row, n, reach, rows: tl.constexpr):
    """Of each row, the node above that is `reach` rows wide."""
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    here = number < n
    node = tl.load(row + number, here, 0) // reach
    children = node[:, None] * _CHILDREN + tl.arange(0, _CHILDREN)[None, :]
    tl.store(above + node, tl.sum(tl.load(below + children), 1), here)


@triton.jit(do_not_specialize=["n", "least", "alpha"])
def _weigh(weights, row, error, made, highest, n, least, alpha, rows: tl.constexpr):
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    here = number < n
    place = tl.load(row + number, here, 0)
    new = tl.exp2(alpha * tl.log2(tl.abs(tl.load(error + number, here, 0.0)) + least))
    weight = tl.where(tl.load(made) != 0, new, tl.load(weights + place, here, 0.0))
    tl.store(weights + place, weight, here)
    tl.atomic_max(highest, tl.max(tl.where(here, weight, 0.0)))


def draw(whole: Tensor, downwards: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """See `SumTree.draw`; `downwards` has where in `whole` the levels begin, the top first."""
    noise = noise.contiguous()
    row, weight = torch.empty_like(noise, dtype=torch.int64), torch.empty_like(noise)
    n, depth = noise.numel(), len(downwards)
    _draw[(triton.cdiv(n, _ROWS),)](
        whole, downwards, noise, row, weight, n, noise.shape[-1], depth, rows=_ROWS
    )
    return row, weight


def sum_up(levels: list[Tensor], row: Tensor) -> None:
    """Sum the nodes above these rows, from the bottom up."""
    n, reach, row = len(row), 1, row.contiguous()
    for below, above in pairwise(levels):
        reach *= _CHILDREN.value
        _sum_up[(triton.cdiv(n, _ROWS),)](below, above, row, n, reach, rows=_ROWS)


def weigh(
    weights: Tensor,
    row: Tensor,
    error: Tensor,
    made: Tensor,
    least: float,
    alpha: float,
    highest: Tensor,
) -> None:
    """See `SumTree.weigh`; without the sums."""
    n = len(row)
    _weigh[(triton.cdiv(n, 256),)](
        weights, row.contiguous(), error.contiguous(), made, highest, n, least, alpha, rows=256
    )


def try_out() -> None:
    """Build them, and run them once."""
    levels = [torch.ones(128, device="cuda"), torch.ones(64, device="cuda")]
    row, ones = torch.zeros(2, dtype=torch.int64, device="cuda"), torch.ones(2, device="cuda")
    weigh(levels[0], row, ones, ones[0] > 0, 1.0, 1.0, ones[0])
    sum_up(levels, row)
    draw(torch.cat(levels), torch.tensor([128, 0], device="cuda"), ones)
