"""Sums of what many programs have each left a part of."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 8192  # numbers that a program holds
_WIDEST = 1024
_NARROWEST = 32


@triton.jit(do_not_specialize=["parts"])
def _summed(
    given,
    out,
    parts,
    size,
    given_part,
    given_group,
    out_group,
    at_once: tl.constexpr,
    width: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * width + tl.arange(0, width)
    here = place < size
    part = tl.arange(0, at_once)
    given += group * given_group
    total = tl.zeros([at_once, width], tl.float32)
    for first in range(0, parts, at_once):
        row = (first + part).to(tl.int64)[:, None]
        mask = (row < parts) & here[None, :]
        total += tl.load(given + row * given_part + place[None, :], mask, other=0.0)
    tl.store(out + group * out_group + place, tl.sum(total, 0), here)


def summed(given: Tensor, out: Tensor) -> Tensor:
    """The sums over the first dimension of `given` [S, G, n], written to `out` [G, n].

    Numbers lie side by side along n, in both; always summed in the same order.
    """
    parts, groups, size = given.shape
    at_once = min(triton.next_power_of_2(parts), _TILE // _NARROWEST)
    width = min(_WIDEST, _TILE // at_once)
    _summed[(triton.cdiv(size, width), groups)](
        given,
        out,
        parts,
        size,
        *given.stride()[:2],
        out.stride(0),
        at_once=at_once,
        width=width,
        num_warps=8,
    )
    return out
