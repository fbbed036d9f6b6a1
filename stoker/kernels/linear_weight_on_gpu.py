"""Gradients of weights and biases, and the ways to them that can be chosen among.

The constants in capitals are what `bench.kernels_wide` measures alternatives to.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels.linear import Precision
from stoker.kernels.tiles_on_gpu import (
    PROCESSORS,
    Tile,
    by_network,
    clipped,
    input_precision_of,
    multiplied,
)

WEIGHT_TILES: dict[Precision, Tile] = {
    "bf16": Tile(128, 256, 64, 8, 3),
    "tf32": Tile(128, 128, 32, 8, 3),
    "fp32": Tile(64, 64, 16, 4, 3),
}
"""Of `backward_weight`: outputs, inputs, and minibatch rows as the depth."""

WeightWay = Literal["kernel", "library"]
WEIGHT_WAY: dict[Precision, WeightWay] = {"bf16": "library", "tf32": "library", "fp32": "library"}
"""How a weight's gradient is computed, unless its layer is narrow."""
NARROW = 64
"""Inputs up to which the kernel computes it: libraries are poor at it, and the bias comes along."""

SumWay = Literal["kernel", "library", "ones"]
SUM_WAY: SumWay = "kernel"
"""How columns are summed, where no product does it on the way: "ones" is a product with ones."""

_NARROW_PROGRAMS_A_PROCESSOR = 4  # these wait for memory, so several take turns
_SUM_ROWS, _SUM_COLUMNS, _SUM_PROGRAMS = 32, 128, 8 * PROCESSORS


@triton.jit(do_not_specialize=["rows", "share"])  # else some minibatches would be built for late
def _backward_weight(
    d_out,
    x,
    partial,
    rows,
    share,
    inputs,
    outputs,
    width,
    d_out_network,
    d_out_row,
    x_network,
    x_row,
    sum_columns: tl.constexpr,
    whole_depth: tl.constexpr,
    input_precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
):
    """A block of one share's d_out^T @ x; a column of ones after those of `x` sums `d_out`."""
    across = tl.cdiv(width, block_columns)
    network, split = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    output = tl.program_id(0) // across * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(0) % across * block_columns + tl.arange(0, block_columns)
    first, row = split * share, tl.arange(0, block_depth)
    d_out_share = d_out + network * d_out_network + first * d_out_row
    d_out_at = d_out_share + row[:, None] * d_out_row + output[None, :]
    x_at = x + network * x_network + first * x_row + row[:, None] * x_row + column[None, :]
    output_here, column_here = (output < outputs)[None, :], (column < inputs)[None, :]
    total = tl.zeros([block_rows, block_columns], tl.float32)
    for start in range(0, share, block_depth):
        if whole_depth:
            d = tl.load(d_out_at, output_here, other=0.0)
            b = tl.load(x_at, column_here, other=0.0)
        else:
            row_here = (row < rows - first - start)[:, None]
            d = tl.load(d_out_at, output_here & row_here, other=0.0)
            b = tl.load(x_at, column_here & row_here, other=0.0)
        b = b.to(d.dtype)
        if sum_columns:
            b = tl.where((column == inputs)[None, :], 1.0, b).to(d.dtype)
        total = multiplied(tl.trans(d), b, total, input_precision)
        d_out_at += block_depth * d_out_row
        x_at += block_depth * x_row
    block = partial + (split * tl.num_programs(1) + network) * outputs * width
    here = (output < outputs)[:, None] & (column < width)[None, :]
    tl.store(block + output[:, None] * width + column[None, :], total, here)


@triton.jit(do_not_specialize=["rows", "share"])  # else some minibatches would be built for late
def _sum_columns(
    d_out,
    partial,
    rows,
    share,
    outputs,
    d_out_network,
    d_out_row,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Column sums of one share of the rows."""
    network, split = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    first, row = split * share, tl.arange(0, block_rows)
    d_out_share = d_out + network * d_out_network + first * d_out_row
    at = d_out_share + row[:, None] * d_out_row + column[None, :]
    total = tl.zeros([block_rows, block_columns], tl.float32)
    for start in range(0, share, block_rows):
        here = (row < rows - first - start)[:, None] & (column < outputs)[None, :]
        total += tl.load(at, here, other=0.0).to(tl.float32)
        at += block_rows * d_out_row
    place = (split * tl.num_programs(1) + network) * outputs + column
    tl.store(partial + place, tl.sum(total, 0), column < outputs)


def backward_weight(
    d_out: Tensor,
    x: Tensor,
    precision: Precision,
    d_bias: Tensor | None = None,
    way: WeightWay | None = None,
    tile: Tile | None = None,
    splits: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `linear.backward_weight`; `splits` shares of the rows are summed one by one.

    The weight's gradient is written to `out` where that is given, with any strides.
    """
    way = way or ("kernel" if x.shape[-1] <= NARROW else WEIGHT_WAY[precision])
    if out is None:
        out = torch.empty(*d_out.shape[::2], x.shape[-1], device=d_out.device)
    if way == "library":
        d_weight = _weight_by_library(d_out, x.to(d_out.dtype), splits, out)
        return d_weight, sum_columns(d_out) if d_bias is None else d_bias
    on_the_way = d_bias is None and x.shape[-1] <= NARROW
    d_weight, sums = _weight_by_kernel(d_out, x, precision, tile, splits, on_the_way, out)
    if d_bias is None:
        d_bias = sum_columns(d_out) if sums is None else sums
    return d_weight, d_bias


def _weight_by_kernel(
    d_out: Tensor,
    x: Tensor,
    precision: Precision,
    tile: Tile | None,
    splits: int | None,
    sum_columns: bool,
    out: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """The gradient of `weight`, and the column sums of `d_out` where they are asked for."""
    (networks, rows, outputs), inputs = d_out.shape, x.shape[-1]
    d_out, x = by_network(d_out, networks), by_network(x, networks)
    width = inputs + sum_columns
    tile = clipped(tile or WEIGHT_TILES[precision], outputs, width, rows)
    blocks = triton.cdiv(outputs, tile.rows) * triton.cdiv(width, tile.columns)
    programs = PROCESSORS * (_NARROW_PROGRAMS_A_PROCESSOR if width <= NARROW + 1 else 1)
    splits = splits or max(1, programs // (blocks * networks))
    share, splits = _shares(rows, splits, tile.depth)
    partial = torch.empty(splits, networks, outputs, width, device=d_out.device)
    _backward_weight[(blocks, networks, splits)](
        d_out,
        x,
        partial,
        rows,
        share,
        inputs,
        outputs,
        width,
        *d_out.stride()[:2],
        *x.stride()[:2],
        sum_columns=sum_columns,
        whole_depth=rows == share * splits,
        input_precision=input_precision_of(precision),
        block_rows=tile.rows,
        block_columns=tile.columns,
        block_depth=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    d_weight = torch.sum(partial[..., :inputs], 0, out=out)
    return d_weight, partial[..., -1].sum(0) if sum_columns else None


def _weight_by_library(d_out: Tensor, x: Tensor, splits: int | None, out: Tensor) -> Tensor:
    """The gradient of `weight`, a product for each share of the rows, so that they fill the GPU."""
    networks, rows, outputs = d_out.shape
    splits = splits or _library_splits(networks, rows, outputs, x.shape[-1])
    left = d_out.unflatten(1, (splits, rows // splits)).mT
    right = x.unflatten(-2, (splits, rows // splits))
    if x.dim() == 3:
        partial = _products(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, (networks, -1))
    else:
        partial = torch.stack([_products(left[network], right) for network in range(networks)])
    return torch.sum(partial, 1, out=out)


def _library_splits(networks: int, rows: int, outputs: int, inputs: int) -> int:
    """A power of two that divides the rows and gives every processor one large block at most."""
    blocks = networks * triton.cdiv(outputs, 128) * triton.cdiv(inputs, 256)
    splits = 1
    while 2 * splits * blocks <= PROCESSORS and rows % (2 * splits) == 0:
        splits *= 2
    return splits


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left [n, a, b] @ right [n, b, c] in float32, of whatever it is given."""
    if left.dtype == torch.float32:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def sum_columns(d_out: Tensor, way: SumWay | None = None) -> Tensor:
    """The sums [G, O] over the rows of [G, B, O], in float32."""
    way = way or SUM_WAY
    networks, rows, outputs = d_out.shape
    if way == "library":
        return d_out.sum(1, dtype=torch.float32)
    if way == "ones":
        ones = torch.ones(1, 1, rows, dtype=d_out.dtype, device=d_out.device)
        return _products(ones.expand(networks, 1, rows), d_out).squeeze(1)
    d_out = by_network(d_out, networks)
    across = triton.cdiv(outputs, _SUM_COLUMNS)
    splits = max(1, _SUM_PROGRAMS // (across * networks))
    share, splits = _shares(rows, splits, _SUM_ROWS)
    partial = torch.empty(splits, networks, outputs, device=d_out.device)
    _sum_columns[(across, networks, splits)](
        d_out,
        partial,
        rows,
        share,
        outputs,
        *d_out.stride()[:2],
        block_rows=_SUM_ROWS,
        block_columns=_SUM_COLUMNS,
    )
    return partial.sum(0)


def _shares(rows: int, splits: int, block: int) -> tuple[int, int]:
    """How many rows each of about `splits` gets, in whole blocks, and how many then get any."""
    share = triton.cdiv(triton.cdiv(rows, block), splits) * block
    return share, triton.cdiv(rows, share)
