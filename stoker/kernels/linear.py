"""Layers of wide networks, G of them at once, pass by pass: what kernels do in one each.

In plain torch an activation, its derivative and the sums for a bias are passes of their own over
[B, width]; beside products on a GPU's matrix units they cost as much as the products do. In the
kernels (`linear_on_gpu` and its like) they happen where a product's result is written.

Shapes: G networks of one form, B rows, I inputs of a layer, O outputs. `weight` [G, O, I] and
`bias` [G, O] may be views with any strides. For the precision "bf16", activations and their
gradients are stored in bfloat16 and `weight` comes in it; all else, and all sums, are float32.
"""

from __future__ import annotations

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


def forward_twin(
    x: Tensor, weight: Tensor, bias: Tensor, activation: Activation, precision: Precision
) -> Activated:
    """activation(x @ weight^T + bias), for `x` [G, B, I], or [B, I] that all networks share."""
    before = _rounded(x, precision) @ _rounded(weight, precision).mT + bias.unsqueeze(1)
    out = _ACTIVATIONS[activation](before).to(stored(precision))
    return Activated(out, before.to(out.dtype) if activation == "silu" else out)


def backward_input_twin(
    d_out: Tensor, weight: Tensor, kept: Tensor, activation: Activation, precision: Precision
) -> tuple[Tensor, Tensor]:
    """From the gradient [G, B, O] before this layer's activation, [G, B, I] before the one below.

    `kept` [G, B, I] is what the layer below kept. Also the column sums [G, I], which are the
    gradient of its bias.
    """
    d_in = _rounded(d_out, precision) @ _rounded(weight, precision)
    d_in = d_in * derivative(kept.float(), activation)
    return d_in.to(stored(precision)), d_in.sum(1)


def backward_weight_twin(d_out: Tensor, x: Tensor, precision: Precision) -> Tensor:
    """The gradient of `weight` [G, O, I], in float32. `x` is what the layer was given."""
    return _rounded(d_out, precision).mT @ _rounded(x, precision)


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
