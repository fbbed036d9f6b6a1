"""What the kernels of `linear` share: blocks of a result, and how a block is multiplied."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels.linear import Precision

PROCESSORS = 132  # of an H200
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


class Tile(NamedTuple):
    """The block of a result that a program computes, and how."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    band: int = 8
    """Row blocks whose programs run side by side, so that they share columns in the cache."""


@triton.jit
def multiplied(a, b, total, input_precision: tl.constexpr):
    if INTERPRETED:  # it would take the bits of bfloat16 for whole numbers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=input_precision)


def clipped(tile: Tile, rows: int, columns: int, depth: int) -> Tile:
    """The tile, no larger than a result of this size needs; matrix units want 16 at least."""

    def clip(block: int, size: int) -> int:
        return min(block, max(16, triton.next_power_of_2(size)))

    return tile._replace(
        rows=clip(tile.rows, rows),
        columns=clip(tile.columns, columns),
        depth=clip(tile.depth, depth),
    )


def by_network(rows: Tensor, networks: int) -> Tensor:
    """[G, B, n] with whole rows in memory; those that all networks share are not copied."""
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    return rows if rows.dim() == 3 else rows.expand(networks, *rows.shape)


def input_precision_of(precision: Precision) -> str:
    return "ieee" if precision == "fp32" else "tf32"
