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


@triton.jit
def placed(down, across, band: tl.constexpr):
    """Block row and block column of this program; bands of rows come one after another."""
    return placed_at(tl.program_id(0), down, across, band)


@triton.jit
def placed_at(number, down, across, band: tl.constexpr):
    """The same for a block by its number."""
    first = number // (band * across) * band
    height = tl.minimum(down - first, band)
    inside = number % (band * across)
    return first + inside % height, inside // height


@triton.jit
def block_product(
    left,
    right,
    row,
    column,
    rows,
    columns,
    depth,
    left_row,
    right_depth,
    right_column,
    whole_depth: tl.constexpr,
    input_precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
):
    """A block of left [rows, depth] @ right [depth, columns]; zeros past the edges."""
    k = tl.arange(0, block_depth)
    left_at = left + row[:, None] * left_row + k[None, :]
    right_at = right + k[:, None] * right_depth + column[None, :] * right_column
    left_here, right_here = (row < rows)[:, None], (column < columns)[None, :]
    total = tl.zeros([block_rows, block_columns], tl.float32)
    for start in range(0, depth, block_depth):
        if whole_depth:
            a = tl.load(left_at, left_here, other=0.0)
            b = tl.load(right_at, right_here, other=0.0)
        else:
            inside = k < depth - start
            a = tl.load(left_at, left_here & inside[None, :], other=0.0)
            b = tl.load(right_at, right_here & inside[:, None], other=0.0)
        total = multiplied(a.to(b.dtype), b, total, input_precision)
        left_at += block_depth
        right_at += block_depth * right_depth
    return total


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
