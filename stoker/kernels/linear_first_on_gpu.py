"""Gradients of a narrow first layer, taken where those of the layer above it are multiplied.

The gradient before the first layer's activation is the widest thing of a backward pass, and nothing
but that layer's own parameters depends on it: so it never leaves the chip.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels.linear import Activation, Precision
from stoker.kernels.linear_on_gpu import along_depth, derivative, fitting, grid_of
from stoker.kernels.tiles_on_gpu import (
    Tile,
    block_product,
    by_network,
    input_precision_of,
    multiplied,
    placed,
)

MOST_INPUTS = 31
"""Of a first layer: with a column of ones for the bias, what a small block of a product holds."""


@triton.jit(do_not_specialize=["rows"])  # else some minibatches would be built for amid a run
def _first(
    d_out,
    weight,
    kept,
    x,
    partial,
    rows,
    middle,
    outputs,
    d_out_network,
    d_out_row,
    weight_network,
    weight_output,
    weight_input,
    kept_network,
    kept_row,
    x_network,
    x_row,
    inputs: tl.constexpr,
    padded: tl.constexpr,
    activation: tl.constexpr,
    whole_depth: tl.constexpr,
    input_precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    band: tl.constexpr,
):
    """One block of rows' share: x and ones, transposed, times a block of the gradient."""
    down, across = tl.cdiv(rows, block_rows), tl.cdiv(middle, block_columns)
    row_block, column_block = placed(down, across, band)
    network = tl.program_id(1).to(tl.int64)
    first, row = (row_block * block_rows).to(tl.int64), tl.arange(0, block_rows)
    column = column_block * block_columns + tl.arange(0, block_columns)
    total = block_product(
        d_out + network * d_out_network + first * d_out_row,
        weight + network * weight_network,
        row,
        column,
        rows - first,
        middle,
        outputs,
        d_out_row,
        weight_output,
        weight_input,
        whole_depth,
        input_precision,
        block_rows,
        block_columns,
        block_depth,
    )
    there = (row < rows - first)[:, None]
    kept_block = kept + network * kept_network + first * kept_row
    inside = there & (column < middle)[None, :]
    below = tl.load(kept_block + row[:, None] * kept_row + column[None, :], inside, other=0.0)
    total *= derivative(below.to(tl.float32), activation)
    i = tl.arange(0, padded)[None, :]
    x_at = x + network * x_network + first * x_row + row[:, None] * x_row + i
    seen = tl.load(x_at, there & (i < inputs), other=0.0)
    seen = tl.where(i == inputs, 1.0, seen).to(d_out.dtype.element_ty)
    share = tl.zeros([padded, block_columns], tl.float32)
    rounded = total.to(d_out.dtype.element_ty)
    share = multiplied(tl.trans(seen), rounded, share, input_precision)
    width = inputs + 1
    block = partial + (row_block.to(tl.int64) * tl.num_programs(1) + network) * middle * width
    i = tl.arange(0, padded)[:, None]
    stored = (i < width) & (column < middle)[None, :]
    tl.store(block + column[None, :] * width + i, share, stored)


def backward_first(
    d_out: Tensor,
    weight: Tensor,
    kept: Tensor,
    x: Tensor,
    activation: Activation,
    precision: Precision,
    tile: Tile | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear.backward_input` and then `linear.backward_weight` of the layer below, the first one.

    `weight` [G, O, M] and `d_out` [G, B, O] are the second layer's; `kept` [G, B, M] and `x` [B, I]
    or [G, B, I] the first one's, whose gradients [G, M, I] and [G, M] go to `out` if it is given.
    """
    (networks, outputs, middle), inputs = weight.shape, x.shape[-1]
    weight = along_depth(weight, precision)
    d_out, kept = by_network(d_out, networks), by_network(kept, networks)
    x = by_network(x, networks)
    rows = d_out.shape[1]
    tile = fitting(tile, precision, networks, rows, middle, outputs)
    blocks = triton.cdiv(rows, tile.rows)
    partial = torch.empty(blocks, networks, middle, inputs + 1, device=d_out.device)
    _first[grid_of(tile, networks, rows, middle)](
        d_out,
        weight,
        kept,
        x,
        partial,
        rows,
        middle,
        outputs,
        *d_out.stride()[:2],
        *weight.stride(),
        *kept.stride()[:2],
        *x.stride()[:2],
        inputs=inputs,
        padded=max(16, triton.next_power_of_2(inputs + 1)),
        activation=activation,
        whole_depth=outputs % tile.depth == 0,
        input_precision=input_precision_of(precision),
        block_rows=tile.rows,
        block_columns=tile.columns,
        block_depth=tile.depth,
        band=tile.band,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if out is None:
        total = partial.sum(0)
        return total[..., :inputs], total[..., inputs]
    torch.sum(partial[..., :inputs], 0, out=out[0])
    torch.sum(partial[..., inputs], 0, out=out[1])
    return out
