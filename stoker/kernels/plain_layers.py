"""Linear layers and their gradient by hand, for a CPU.

Where a minibatch is small, autograd's own work takes longer than the matrix products, and making
tensors takes long, too: what lies between the layers is used again for rows that are as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

ACTIVATIONS = ("relu", "tanh")

_through_relu = torch.ops.aten.threshold_backward.grad_input
_through_tanh = torch.ops.aten.tanh_backward.grad_input


class _Layer(NamedTuple):
    weight: Tensor
    across: Tensor
    """The weight, transposed."""
    bias: Tensor
    weight_slope: Tensor | None
    bias_slope: Tensor | None


class PlainLayers:
    """A stack of layers, all but the last followed by the activation; parameters are read where
    they are now, and gradients are written to their `grad`, which must be there by then."""

    def __init__(self, layers: Sequence[nn.Linear], activation: str) -> None:
        assert activation in ACTIVATIONS
        *self._hidden, self._last = [
            _Layer(x.weight.data, x.weight.data.t(), x.bias.data, x.weight.grad, x.bias.grad)
            for x in layers
        ]
        self._relu = activation == "relu"
        self._size = self._learned = -1
        self._seen: list[Tensor] = []
        self._activated: list[Tensor] = []
        self._slopes: list[tuple[Tensor, Tensor]] = []

    def forward(self, rows: Tensor) -> Tensor:
        """[n, in] to [n, out]; what the layers saw is kept for `backward`, until the next rows."""
        if rows.shape[0] != self._size:
            self._size, self._learned = rows.shape[0], -1
            widths = [layer.bias.shape[0] for layer in self._hidden]
            self._activated = [rows.new_empty(self._size, width) for width in widths]
        self._seen = [rows, *self._activated]
        for layer, kept in zip(self._hidden, self._activated, strict=True):
            torch.addmm(layer.bias, rows, layer.across, out=kept)
            rows = kept.relu_() if self._relu else kept.tanh_()
        return torch.addmm(self._last.bias, rows, self._last.across)

    def backward(self, slope: Tensor) -> None:
        """From the slope [m, out] of a loss over the first m rows to the parameters' gradients."""
        size = slope.shape[0]
        if size != self._learned:
            self._learned = size
            self._slopes = [(x, x.t()) for x in map(torch.empty_like, self._first(size)[1:])]
        seen, layer = self._first(size), self._last
        self._write(layer, slope, slope.t(), seen[-1])
        for place in reversed(range(len(self._hidden))):
            below, across = self._slopes[place]
            activated = seen[place + 1]  # of which the slope before the activation follows
            torch.mm(slope, layer.weight, out=below)
            if self._relu:
                _through_relu(below, activated, 0.0, grad_input=below)
            else:
                _through_tanh(below, activated, grad_input=below)
            slope, layer = below, self._hidden[place]
            self._write(layer, slope, across, seen[place])

    def _first(self, size: int) -> list[Tensor]:
        return self._seen if size == self._size else [rows[:size] for rows in self._seen]

    def _write(self, layer: _Layer, slope: Tensor, across: Tensor, seen: Tensor) -> None:
        torch.mm(across, seen, out=layer.weight_slope)
        torch.sum(slope, 0, out=layer.bias_slope)
