"""The layers of `linear` in Triton: products that activate, or differentiate, what they write.

The constants in capitals are what `bench.kernels_wide` measures alternatives to.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels import linear_bulk_on_gpu
from stoker.kernels.activations_on_gpu import activated, slope
from stoker.kernels.linear import Activation, Precision, stored
from stoker.kernels.sums_on_gpu import summed
from stoker.kernels.tiles_on_gpu import (
    PROCESSORS,
    Tile,
    block_product,
    by_network,
    clipped,
    input_precision_of,
    placed,
)

TILES: dict[Precision, tuple[Tile, ...]] = {
    "bf16": (
        Tile(128, 256, 64, 8, 3),
        Tile(128, 128, 64, 4, 3),
        Tile(64, 128, 64, 4, 4),
        Tile(64, 64, 64, 4, 4),
    ),
    "tf32": (
        Tile(128, 256, 32, 8, 3),
        Tile(128, 128, 32, 4, 3),
        Tile(64, 128, 32, 4, 4),
        Tile(64, 64, 32, 4, 4),
    ),
    "fp32": (Tile(128, 64, 16, 8, 3), Tile(64, 64, 16, 4, 3)),
}
"""Of `forward` and `backward_input`: the first that gives every processor something to do."""
SHALLOW = 64
"""Products no deeper than this leave out the first, for they wait for their writes."""


@triton.jit(do_not_specialize=["rows"])  # else some minibatches would be built for amid a run
def _forward(
    x,
    weight,
    bias,
    out,
    kept,
    limit,
    rows,
    inputs,
    outputs,
    x_network,
    x_row,
    weight_network,
    weight_output,
    weight_input,
    bias_network,
    bias_output,
    limited: tl.constexpr,
    activation: tl.constexpr,
    rough: tl.constexpr,
    whole_depth: tl.constexpr,
    input_precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    band: tl.constexpr,
):
    down, across = tl.cdiv(rows, block_rows), tl.cdiv(outputs, block_columns)
    row_block, column_block = placed(down, across, band)
    network = tl.program_id(1).to(tl.int64)
    first, row = (row_block * block_rows).to(tl.int64), tl.arange(0, block_rows)
    column = column_block * block_columns + tl.arange(0, block_columns)
    left = rows - first
    depth = inputs
    if limited:
        left = tl.minimum(rows, tl.load(limit)) - first
        depth = tl.where(left > 0, inputs, 0)
    total = block_product(
        x + network * x_network + first * x_row,
        weight + network * weight_network,
        row,
        column,
        left,
        outputs,
        depth,
        x_row,
        weight_input,
        weight_output,
        whole_depth,
        input_precision,
        block_rows,
        block_columns,
        block_depth,
    )
    added = tl.load(
        bias + network * bias_network + column * bias_output, column < outputs, other=0.0
    )
    total += added.to(tl.float32)[None, :]
    block = (network * rows + first) * outputs
    place = row[:, None] * outputs + column[None, :]
    here = (row < left)[:, None] & (column < outputs)[None, :]
    result = activated(total, activation, rough)
    tl.store(out + block + place, result.to(out.dtype.element_ty), here)
    if activation == "silu":
        tl.store(kept + block + place, total.to(kept.dtype.element_ty), here)


@triton.jit(do_not_specialize=["rows"])  # else some minibatches would be built for amid a run
def _backward_input(
    d_out,
    weight,
    kept,
    d_in,
    sums,
    rows,
    inputs,
    outputs,
    d_out_network,
    d_out_row,
    weight_network,
    weight_output,
    weight_input,
    kept_network,
    kept_row,
    activation: tl.constexpr,
    whole_depth: tl.constexpr,
    input_precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    band: tl.constexpr,
):
    down, across = tl.cdiv(rows, block_rows), tl.cdiv(inputs, block_columns)
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
        inputs,
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
    here = (row < rows - first)[:, None] & (column < inputs)[None, :]
    kept_block = kept + network * kept_network + first * kept_row
    below = tl.load(kept_block + row[:, None] * kept_row + column[None, :], here, other=0.0)
    total *= slope(below.to(tl.float32), activation)
    block = d_in + (network * rows + first) * inputs
    place = row[:, None] * inputs + column[None, :]
    tl.store(block + place, total.to(d_in.dtype.element_ty), here)
    sums_at = sums + (network * down + row_block) * inputs + column
    tl.store(sums_at, tl.sum(total, 0), column < inputs)


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: Activation,
    precision: Precision,
    tile: Tile | None = None,
    limit: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `linear.forward_twin`. No row from `limit` on, one number on the device, is computed."""
    networks, outputs, inputs = weight.shape
    x = by_network(x, networks)
    if tile is None and limit is None and linear_bulk_on_gpu.usable(precision, x, weight):
        return linear_bulk_on_gpu.forward(x, weight, bias, activation, precision)
    rows = x.shape[1]
    tile = fitting(tile, precision, networks, rows, outputs, inputs)
    out = torch.empty(networks, rows, outputs, dtype=stored(precision), device=x.device)
    kept = torch.empty_like(out) if activation == "silu" else out
    _forward[grid_of(tile, networks, rows, outputs)](
        x,
        weight,
        bias,
        out,
        kept,
        out if limit is None else limit,
        rows,
        inputs,
        outputs,
        *x.stride()[:2],
        *weight.stride(),
        *bias.stride(),
        limited=limit is not None,
        activation=activation,
        rough=precision != "fp32",
        whole_depth=inputs % tile.depth == 0,
        input_precision=input_precision_of(precision),
        block_rows=tile.rows,
        block_columns=tile.columns,
        block_depth=tile.depth,
        band=tile.band,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out, kept


def backward_input(
    d_out: Tensor,
    weight: Tensor,
    kept: Tensor,
    activation: Activation,
    precision: Precision,
    d_bias: Tensor,
    tile: Tile | None = None,
) -> Tensor:
    """See `linear.backward_input_twin`; the column sums go to `d_bias` [G, I]."""
    networks, outputs, inputs = weight.shape
    weight = along_depth(weight, precision)
    d_out, kept = by_network(d_out, networks), by_network(kept, networks)
    if tile is None and linear_bulk_on_gpu.usable(precision, d_out, _along_rows(weight), kept):
        d_in, sums = linear_bulk_on_gpu.backward_input(d_out, weight, kept, activation, precision)
        summed(sums.transpose(0, 1), d_bias)
        return d_in
    rows = d_out.shape[1]
    tile = fitting(tile, precision, networks, rows, inputs, outputs)
    d_in = torch.empty(networks, rows, inputs, dtype=stored(precision), device=d_out.device)
    sums = torch.empty(networks, triton.cdiv(rows, tile.rows), inputs, device=d_out.device)
    _backward_input[grid_of(tile, networks, rows, inputs)](
        d_out,
        weight,
        kept,
        d_in,
        sums,
        rows,
        inputs,
        outputs,
        *d_out.stride()[:2],
        *weight.stride(),
        *kept.stride()[:2],
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
    summed(sums.transpose(0, 1), d_bias)
    return d_in


def along_depth(weight: Tensor, precision: Precision) -> Tensor:
    """A weight [G, O, I] to be multiplied by from the left, as matrix units read it best."""
    if precision == "tf32" and weight.stride(1) != 1:
        return weight.mT.contiguous().mT  # they read float32 along the depth alone
    return weight


def _along_rows(weight: Tensor) -> Tensor:
    """The weight, or its transpose, whichever lies in whole rows."""
    return weight.mT if weight.stride(1) == 1 else weight


def fitting(
    tile: Tile | None, precision: Precision, networks: int, rows: int, columns: int, depth: int
) -> Tile:
    """`tile`, or the first of the table that leaves no processor idle; no larger than needed."""
    if tile is None:
        tiles = [t for t in TILES[precision][depth <= SHALLOW :] if _held(t, precision) <= _room()]
        tiles = tiles or [TILES[precision][-1]]
        tile = next((t for t in tiles if _busy(t, networks, rows, columns)), tiles[-1])
    return clipped(tile, tile.rows, columns, depth)


def _held(tile: Tile, precision: Precision) -> int:
    """Bytes of operands that a program keeps at hand."""
    across = (tile.rows + tile.columns) * tile.depth
    return tile.stages * across * stored(precision).itemsize


@functools.cache
def _room() -> float:
    """Bytes that a program may keep at hand on this chip."""
    if not torch.cuda.is_available():
        return math.inf
    chip = torch.cuda.get_device_properties(torch.cuda.current_device())
    return getattr(chip, "shared_memory_per_block_optin", math.inf)  # not all have it


def _busy(tile: Tile, networks: int, rows: int, columns: int) -> bool:
    return math.prod(grid_of(tile, networks, rows, columns)) >= PROCESSORS


def grid_of(tile: Tile, networks: int, rows: int, columns: int) -> tuple[int, int]:
    return triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns), networks
