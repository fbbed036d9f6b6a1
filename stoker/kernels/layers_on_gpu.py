"""Layers of an agent's network as parts for kernels: from observations through a trunk and back.

Every width is padded to a power of two with zeros, which every activation maps to zeros. A trunk's
layer i goes from `widths[i]` to `widths[i + 1]`; in a row of the flat buffer its weight begins at
`trunk[2 * i]` and its bias at `trunk[2 * i + 1]`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from stoker.kernels import activations_on_gpu
from stoker.kernels.mlp import CLIP, Net
from stoker.kernels.tiles_on_gpu import multiplied

NARROWEST = 16
"""The narrowest matrix that a GPU multiplies in one piece."""
INPUT_PRECISION = {"fp32": "ieee", "tf32": "tf32", "bf16": "bf16"}
_CLIP = tl.constexpr(CLIP)


class Launch(NamedTuple):
    """How a kernel is spread over the chip; what it computes changes by rounding alone."""

    block: int
    """Rows of a tile, a power of two from 16 on."""
    num_warps: int
    num_stages: int = 1


def padded(width: int) -> int:
    """The power of two that a width is filled up to."""
    return max(NARROWEST, triton.next_power_of_2(width))


def described(net: Net, precision: str) -> dict[str, Any]:
    """What all kernels must know of a net when they are built."""
    widths = (net.inputs, *net.hidden)
    return {
        "widths": widths,
        "padded": tuple(padded(width) for width in widths),
        "depth": len(net.hidden),
        "activation": net.activation,
        "precision": INPUT_PRECISION[precision],
    }


@triton.jit
def product(a, b, precision: tl.constexpr):
    return product_added(a, b, tl.zeros([a.shape[0], b.shape[1]], tl.float32), precision)


@triton.jit
def product_added(a, b, total, precision: tl.constexpr):
    if precision == "bf16":
        total = multiplied(a.to(tl.bfloat16), b.to(tl.bfloat16), total, "tf32")
    else:
        total = multiplied(a, b, total, precision)
    return total


@triton.jit
def transposed_product_added(a, b, total, precision: tl.constexpr):
    """total + a^T @ b, in TF32 where other products are in bfloat16.

    In bfloat16 it came out wrong on an H200 with Triton 3.6 and four warps; right with eight, or
    in TF32, or in float32. Why is not known.
    """
    if precision == "bf16":
        total = multiplied(tl.trans(a), b, total, "tf32")
    else:
        total = multiplied(tl.trans(a), b, total, precision)
    return total


@triton.jit
def weight(flat, place, wide, narrow, wide_padded: tl.constexpr, narrow_padded: tl.constexpr):
    """A layer's weight, transposed: [inputs, outputs]."""
    into = tl.arange(0, wide_padded)[:, None]
    out = tl.arange(0, narrow_padded)[None, :]
    return tl.load(flat + place + out * wide + into, (into < wide) & (out < narrow), other=0.0)


@triton.jit
def store_weight(
    flat, place, weight, wide, narrow, wide_padded: tl.constexpr, narrow_padded: tl.constexpr
):
    into = tl.arange(0, wide_padded)[:, None]
    out = tl.arange(0, narrow_padded)[None, :]
    tl.store(flat + place + out * wide + into, weight, (into < wide) & (out < narrow))


@triton.jit
def vector(flat, place, width, padded: tl.constexpr):
    i = tl.arange(0, padded)
    return tl.load(flat + place + i, i < width, other=0.0)


@triton.jit
def store_vector(flat, place, vector, width, padded: tl.constexpr):
    i = tl.arange(0, padded)
    tl.store(flat + place + i, vector, i < width)


@triton.jit
def zeros(rows: tl.constexpr, columns: tl.constexpr):
    return tl.zeros([rows, columns], tl.float32)


@triton.jit
def zero_vector(width: tl.constexpr):
    return tl.zeros([width], tl.float32)


@triton.jit
def layers(
    flat, trunk: tl.constexpr, widths: tl.constexpr, padded: tl.constexpr, depth: tl.constexpr
):
    """The weights and the biases of a trunk."""
    weights = ()
    biases = ()
    for i in tl.static_range(depth):
        matrix = weight(flat, trunk[2 * i], widths[i], widths[i + 1], padded[i], padded[i + 1])
        weights = weights + (matrix,)
        biases = biases + (vector(flat, trunk[2 * i + 1], widths[i + 1], padded[i + 1]),)
    return weights, biases


@triton.jit
def observed(
    obs, row, here, centre, scale, inputs: tl.constexpr, padded: tl.constexpr, scaled: tl.constexpr
):
    """Rows of `obs`, standardised."""
    column = tl.arange(0, padded)[None, :]
    x = tl.load(obs + row[:, None] * inputs + column, here[:, None] & (column < inputs), other=0.0)
    x = x.to(tl.float32)
    if scaled:
        x = x - tl.load(centre + column, column < inputs, other=0.0)
        x = x * tl.load(scale + column, column < inputs, other=0.0)
        x = tl.minimum(tl.maximum(x, -_CLIP), _CLIP)
    return x


@triton.jit
def slope(z, h, activation: tl.constexpr):
    """Of the activation that made `h` of `z`."""
    if activation == "silu":
        result = activations_on_gpu.slope(z, activation)
    else:
        result = activations_on_gpu.slope(h, activation)
    return result


@triton.jit
def passed(
    x, weights, biases, depth: tl.constexpr, activation: tl.constexpr, precision: tl.constexpr
):
    """What a trunk makes of `x`: before every activation, and after it, where `x` comes first."""
    before = ()
    after = (x,)
    for i in tl.static_range(depth):
        z = product(after[i], weights[i], precision) + biases[i][None, :]
        before = before + (z,)
        after = after + (activations_on_gpu.activated(z, activation, precision != "ieee"),)
    return before, after
