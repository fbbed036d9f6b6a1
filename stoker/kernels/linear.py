"""Layers of wide networks, G of them at once: a product and an activation in one kernel each.

In plain torch an activation, its derivative and the sums for a bias are passes of their own over
[B, width]; beside products on a GPU's matrix units they cost as much as the products do. Here they
happen where a product's result is written.

Shapes: G networks of one form, B rows, I inputs of a layer, O outputs. `weight` [G, O, I] and
`bias` [G, O] may be views with any strides. For the precision "bf16", activations and their
gradients are stored in bfloat16 and `weight` comes in it; all else, and all sums, are float32.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Literal["tanh", "relu", "elu", "silu"]
Precision = Literal["fp32", "tf32", "bf16"]


class Activated(NamedTuple):
    """A layer's outputs, and what the derivative of its activation is computed from."""

    out: Tensor  # [G, B, O]
    kept: Tensor  # [G, B, O]: `out` itself, but for silu what went into the activation


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, activation: Activation, precision: Precision
) -> Activated:
    """activation(x @ weight^T + bias), for `x` [G, B, I], or [B, I] that all networks share."""
    kernels = _kernels() if x.is_cuda else None
    if kernels is None:
        return forward_twin(x, weight, bias, activation, precision)
    return Activated(*kernels.forward(x, weight, bias, activation, precision))


def backward_input(
    d_out: Tensor, weight: Tensor, kept: Tensor, activation: Activation, precision: Precision
) -> Tensor:
    """From the gradient [G, B, O] before this layer's activation, [G, B, I] before the one below.

    `kept` [G, B, I] is what the layer below kept.
    """
    kernels = _kernels() if d_out.is_cuda else None
    if kernels is None:
        return backward_input_twin(d_out, weight, kept, activation, precision)[0]
    return kernels.backward_input(d_out, weight, kept, activation, precision)


def backward_input_and_bias(
    d_out: Tensor, weight: Tensor, kept: Tensor, activation: Activation, precision: Precision
) -> tuple[Tensor, Tensor]:
    """`backward_input`, and its column sums [G, I]: the gradient of the bias of the layer below."""
    kernels = _kernels() if d_out.is_cuda else None
    if kernels is None:
        return backward_input_twin(d_out, weight, kept, activation, precision)
    return kernels.backward_input_and_bias(d_out, weight, kept, activation, precision)


def backward_weight(
    d_out: Tensor, x: Tensor, precision: Precision, d_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of `weight` [G, O, I] and of `bias` [G, O], in float32.

    `x` is what the layer was given; `d_bias`, where it is known already, is not computed again.
    """
    kernels = _kernels() if d_out.is_cuda else None
    if kernels is None:
        return backward_weight_twin(d_out, x, precision, d_bias)
    return kernels.backward_weight(d_out, x, precision, d_bias)


def forward_twin(
    x: Tensor, weight: Tensor, bias: Tensor, activation: Activation, precision: Precision
) -> Activated:
    """`forward`, pass by pass."""
    before = _rounded(x, precision) @ _rounded(weight, precision).mT + bias.unsqueeze(1)
    out = _ACTIVATIONS[activation](before).to(stored(precision))
    return Activated(out, before.to(out.dtype) if activation == "silu" else out)


def backward_input_twin(
    d_out: Tensor, weight: Tensor, kept: Tensor, activation: Activation, precision: Precision
) -> tuple[Tensor, Tensor]:
    """`backward_input_and_bias`, pass by pass."""
    d_in = _rounded(d_out, precision) @ _rounded(weight, precision)
    d_in = d_in * derivative(kept.float(), activation)
    return d_in.to(stored(precision)), d_in.sum(1)


def backward_weight_twin(
    d_out: Tensor, x: Tensor, precision: Precision, d_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`backward_weight`, pass by pass."""
    d_weight = _rounded(d_out, precision).mT @ _rounded(x, precision)
    return d_weight, d_out.sum(1, dtype=torch.float32) if d_bias is None else d_bias


def stored(precision: Precision) -> torch.dtype:
    """Of activations and their gradients."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _rounded(operand: Tensor, precision: Precision) -> Tensor:
    """An operand as products read it, in float32, so that they are summed in it."""
    return operand.to(stored(precision)).float()


_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu, "silu": F.silu}


def derivative(kept: Tensor, activation: Activation) -> Tensor:
    """Of the activation, by what `forward` kept."""
    if activation == "tanh":
        return 1 - kept**2
    if activation == "relu":
        return (kept > 0).to(kept.dtype)
    if activation == "elu":
        return torch.where(kept > 0, 1.0, kept + 1)
    sigmoid = kept.sigmoid()
    return sigmoid * (1 + kept * (1 - sigmoid))


@functools.cache
def _kernels() -> ModuleType | None:
    """The kernels, once they have been seen to build here; None where they do not."""
    try:
        from stoker.kernels import linear_on_gpu

        linear_on_gpu.try_out()
        return linear_on_gpu
    except Exception as error:  # no Triton, no C compiler, a chip that it does not know
        warnings.warn(
            f"Triton cannot build kernels here ({type(error).__name__}: {error}), so plain torch "
            "takes their place: updates take longer. Triton comes with torch on Linux and needs a "
            "C compiler.",
            stacklevel=2,
        )
        return None
