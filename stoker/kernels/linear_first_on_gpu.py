"""A narrow first layer of wide networks, forward and backward.

With so few inputs there is little to multiply: forward, only the writing counts. Its gradients are
taken where those of the layer above are multiplied. What goes back to it is the widest thing of a
backward pass, and nothing but its own parameters depends on it: so that never leaves the chip.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels.activations_on_gpu import activated, slope
from stoker.kernels.linear import Activation, Precision, stored
from stoker.kernels.linear_on_gpu import along_depth, fitting, grid_of
from stoker.kernels.sums_on_gpu import summed
from stoker.kernels.tiles_on_gpu import (
    Tile,
    block_product,
    by_network,
    clipped,
    input_precision_of,
    multiplied,
    placed,
)

MOST_INPUTS = 31
"""Of `backward_first`: with ones for the bias beside them, what a small block holds."""
MOST_ADDED = 16
"""Inputs of `forward_first`: beyond, matrix units are faster."""
FORWARD = Tile(rows=32, columns=256, depth=0, warps=4, stages=1)


@triton.jit(do_not_specialize=["rows"])  # else some minibatches would be built for amid a run
def _forward(
    x,
    weight,
    bias,
    out,
    kept,
    limit,
    rows,
    outputs,
    x_network,
    x_row,
    weight_network,
    bias_network,
    inputs: tl.constexpr,
    limited: tl.constexpr,
    activation: tl.constexpr,
    rough: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    network = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    here, inside = row < rows, column < outputs
    if limited:
        here = here & (row < tl.load(limit))
    row = row.to(tl.int64)
    added = tl.load(bias + network * bias_network + column, inside, other=0.0).to(tl.float32)
    total = tl.zeros([block_rows, block_columns], tl.float32) + added[None, :]
    x += network * x_network
    weight += network * weight_network
    for i in tl.static_range(inputs):
        a = tl.load(x + row * x_row + i, here, other=0.0).to(tl.float32)
        b = tl.load(weight + column * inputs + i, inside, other=0.0).to(tl.float32)
        total += a[:, None] * b[None, :]
    place = (network * rows + row[:, None]) * outputs + column[None, :]
    within = here[:, None] & inside[None, :]
    result = activated(total, activation, rough)
    tl.store(out + place, result.to(out.dtype.element_ty), within)
    if activation == "silu":
        tl.store(kept + place, total.to(kept.dtype.element_ty), within)


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
    """One block of rows' share: x and ones, transposed, times a block of the gradient.

    The weight's comes first, then the bias's.
    """
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
    total *= slope(below.to(tl.float32), activation)
    i = tl.arange(0, padded)[None, :]
    x_at = x + network * x_network + first * x_row + row[:, None] * x_row + i
    seen = tl.load(x_at, there & (i < inputs), other=0.0)
    seen = tl.where(i == inputs, 1.0, seen).to(d_out.dtype.element_ty)
    share = tl.zeros([padded, block_columns], tl.float32)
    rounded = total.to(d_out.dtype.element_ty)
    share = multiplied(tl.trans(seen), rounded, share, input_precision)
    size = middle * (inputs + 1)
    block = partial + (row_block.to(tl.int64) * tl.num_programs(1) + network) * size
    i = tl.arange(0, padded)[:, None]
    within = (i <= inputs) & (column < middle)[None, :]
    place = tl.where(i < inputs, column[None, :] * inputs + i, middle * inputs + column[None, :])
    tl.store(block + place, share, within)


def forward_first(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: Activation,
    precision: Precision,
    limit: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_on_gpu.forward` of few inputs, in float32 but for what it reads and writes.

    An output's weights lie side by side, next to those of the output before.
    """
    networks, outputs, inputs = weight.shape
    x = by_network(x, networks)
    rows, tile = x.shape[1], clipped(FORWARD, FORWARD.rows, outputs, inputs)
    out = torch.empty(networks, rows, outputs, dtype=stored(precision), device=x.device)
    kept = torch.empty_like(out) if activation == "silu" else out
    _forward[(triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.columns), networks)](
        x,
        weight,
        bias,
        out,
        kept,
        out if limit is None else limit,
        rows,
        outputs,
        *x.stride()[:2],
        weight.stride(0),
        bias.stride(0),
        inputs=inputs,
        limited=limit is not None,
        activation=activation,
        rough=precision != "fp32",
        block_rows=tile.rows,
        block_columns=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out, kept


def backward_first(
    d_out: Tensor,
    weight: Tensor,
    kept: Tensor,
    x: Tensor,
    activation: Activation,
    precision: Precision,
    d_weight: Tensor,
    d_bias: Tensor,
    tile: Tile | None = None,
) -> None:
    """What `linear.backward_input_twin` and then `backward_weight_twin` make of the first layer.

    `weight` [G, O, M] and `d_out` [G, B, O] are the second layer's; `kept` [G, B, M] and `x` [B, I]
    or [G, B, I] the first one's, whose gradients go to `d_weight` [G, M, I] and `d_bias` [G, M].
    """
    (networks, outputs, middle), inputs = weight.shape, x.shape[-1]
    weight = along_depth(weight, precision)
    d_out, kept = by_network(d_out, networks), by_network(kept, networks)
    x = by_network(x, networks)
    rows = d_out.shape[1]
    tile = fitting(tile, precision, networks, rows, middle, outputs)
    blocks = triton.cdiv(rows, tile.rows)
    partial = torch.empty(blocks, networks, middle * (inputs + 1), device=d_out.device)
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
    summed(partial[..., : middle * inputs], d_weight.flatten(1))
    summed(partial[..., middle * inputs :], d_bias)
