"""Gradients of weights: a product over the rows of a minibatch, in shares that fill the GPU."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels.linear import Precision
from stoker.kernels.sums_on_gpu import summed
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
"""Outputs, inputs, and minibatch rows as the depth."""
WeightWay = Literal["kernel", "library"]
NARROW = 64
"""Inputs up to which the kernel computes it, which libraries are poor at."""

_NARROW_PROGRAMS_A_PROCESSOR = 4  # these wait for memory, so several take turns


@triton.jit(do_not_specialize=["rows", "share"])  # else some minibatches would be built for late
def _backward_weight(
    d_out,
    x,
    partial,
    rows,
    share,
    inputs,
    outputs,
    d_out_network,
    d_out_row,
    x_network,
    x_row,
    whole_depth: tl.constexpr,
    input_precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
):
    """A block of one share's d_out^T @ x."""
    across = tl.cdiv(inputs, block_columns)
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
        total = multiplied(tl.trans(d), b.to(d.dtype), total, input_precision)
        d_out_at += block_depth * d_out_row
        x_at += block_depth * x_row
    block = partial + (split * tl.num_programs(1) + network) * outputs * inputs
    here = (output < outputs)[:, None] & (column < inputs)[None, :]
    tl.store(block + output[:, None] * inputs + column[None, :], total, here)


def backward_weight(
    d_out: Tensor,
    x: Tensor,
    precision: Precision,
    out: Tensor,
    way: WeightWay | None = None,
    tile: Tile | None = None,
    splits: int | None = None,
) -> Tensor:
    """See `linear.backward_weight_twin`; `splits` shares of the rows are summed one by one.

    The gradient is written to `out` [G, O, I], whose networks may lie apart.
    """
    narrow = x.shape[-1] <= NARROW
    if (way or ("kernel" if narrow else "library")) == "library":
        partial = _by_library(d_out, x.to(d_out.dtype), splits)
    else:
        partial = _by_kernel(d_out, x, precision, tile, splits)
    summed(partial.flatten(2), out.flatten(1))
    return out


def _by_kernel(
    d_out: Tensor, x: Tensor, precision: Precision, tile: Tile | None, splits: int | None
) -> Tensor:
    """The gradients of shares of the rows, [shares, G, O, I]."""
    (networks, rows, outputs), inputs = d_out.shape, x.shape[-1]
    d_out, x = by_network(d_out, networks), by_network(x, networks)
    tile = clipped(tile or WEIGHT_TILES[precision], outputs, inputs, rows)
    blocks = triton.cdiv(outputs, tile.rows) * triton.cdiv(inputs, tile.columns)
    programs = PROCESSORS * (_NARROW_PROGRAMS_A_PROCESSOR if inputs <= NARROW else 1)
    splits = splits or max(1, programs // (blocks * networks))
    share, splits = _shares(rows, splits, tile.depth)
    partial = torch.empty(splits, networks, outputs, inputs, device=d_out.device)
    _backward_weight[(blocks, networks, splits)](
        d_out,
        x,
        partial,
        rows,
        share,
        inputs,
        outputs,
        *d_out.stride()[:2],
        *x.stride()[:2],
        whole_depth=rows == share * splits,
        input_precision=input_precision_of(precision),
        block_rows=tile.rows,
        block_columns=tile.columns,
        block_depth=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return partial


def _by_library(d_out: Tensor, x: Tensor, splits: int | None) -> Tensor:
    """Likewise, a product of the library's for each share."""
    networks, rows, outputs = d_out.shape
    splits = splits or _library_splits(networks, rows, outputs, x.shape[-1])
    left = d_out.unflatten(1, (splits, rows // splits)).mT
    right = x.unflatten(-2, (splits, rows // splits))
    if x.dim() == 3:
        partial = _products(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, (networks, -1))
    else:
        partial = torch.stack([_products(left[network], right) for network in range(networks)])
    return partial.transpose(0, 1)


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


def _shares(rows: int, splits: int, block: int) -> tuple[int, int]:
    """How many rows each of about `splits` gets, in whole blocks, and how many then get any."""
    share = triton.cdiv(triton.cdiv(rows, block), splits) * block
    return share, triton.cdiv(rows, share)
