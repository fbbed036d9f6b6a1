"""Activations and their slopes as parts for kernels. What is not a number stays so."""

from __future__ import annotations

import triton
import triton.language as tl

from stoker.kernels.tiles_on_gpu import INTERPRETED


@triton.jit
def _tanh(x, rough: tl.constexpr):
    """If `rough`, by one instruction with a relative error of 2^-11, which matrix units that read
    TF32 or bfloat16 would not see."""
    if rough and not INTERPRETED:
        result = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 2 * tl.sigmoid(2 * x) - 1
    return result


@triton.jit
def activated(x, activation: tl.constexpr, rough: tl.constexpr):
    if activation == "tanh":
        result = _tanh(x, rough)
    elif activation == "relu":
        result = tl.where(x < 0, 0.0, x)
    elif activation == "elu":
        result = tl.where(x < 0, tl.exp(x) - 1, x)
    else:
        result = x * tl.sigmoid(x)
    return result


@triton.jit
def slope(kept, activation: tl.constexpr):
    """The derivative, by what `linear.Activated` keeps."""
    if activation == "tanh":
        result = 1 - kept * kept
    elif activation == "relu":
        result = tl.where(kept > 0, 1.0, 0.0)
    elif activation == "elu":
        result = tl.where(kept > 0, 1.0, kept + 1)
    else:
        sigmoid = tl.sigmoid(kept)
        result = sigmoid * (1 + kept * (1 - sigmoid))
    return result
