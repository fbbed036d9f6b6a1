"""Linear layers and their gradient by hand, for a CPU.

Where a minibatch is small, autograd's own work takes longer than the matrix products, and so does
making tensors: whatever lies between the layers is made once, for as many rows as there will be,
and so are the operations on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS = ("relu", "tanh")

_through_relu = torch.ops.aten.threshold_backward.grad_input
_through_tanh = torch.ops.aten.tanh_backward.grad_input

Operation = Callable[[], object]


class PlainLayers:
    """A stack of layers, all but the last followed by the activation, for `rows` rows at once.

    Parameters are read where they are when this is made. Gradients of the first `learned` rows are
    written to their `grad`, which must be there by then.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], activation: str, rows: int, learned: int = 0
    ) -> None:
        assert activation in ACTIVATIONS
        self._relu, self._rows, self._learned = activation == "relu", rows, learned
        self._weights = [(layer.bias.data, layer.weight.data.t()) for layer in layers]
        self.inputs, self._width = layers[0].in_features, layers[-1].out_features
        self._activated = [torch.empty(rows, layer.out_features) for layer in layers[:-1]]
        self._activate = [_activation(into, self._relu) for into in self._activated]
        self.slope = torch.zeros(learned, self._width)
        """Of a loss over the first `learned` rows: to be written before `backward`."""
        self._way_back = self._operations(layers) if learned else []
        self._seen = torch.empty(0)

    def _operations(self, layers: Sequence[nn.Linear]) -> list[Operation]:
        """From `slope` to all gradients but that of the first layer's weight."""
        saw = [activated[: self._learned] for activated in self._activated]
        slopes = [*map(torch.empty_like, saw), self.slope]
        self._first_slope, ones = slopes[0].t(), torch.ones(self._learned)
        operations: list[Operation] = []
        into = [(_gradient_of(layer.weight), _gradient_of(layer.bias)) for layer in layers]
        for place in reversed(range(len(layers))):
            layer, slope, (weight_slope, bias_slope) = layers[place], slopes[place], into[place]
            across = slope.t()
            operations.append(partial(torch.mv, across, ones, out=bias_slope))
            if place == 0:
                self._first_weight_slope = weight_slope
                continue
            given, below = saw[place - 1], slopes[place - 1]
            operations.append(partial(torch.mm, across, given, out=weight_slope))
            operations.append(partial(torch.mm, slope, layer.weight.data, out=below))
            if self._relu:
                operations.append(partial(_through_relu, below, given, 0.0, grad_input=below))
            else:
                operations.append(partial(_through_tanh, below, given, grad_input=below))
        return operations

    def forward(self, rows: Tensor, out: Tensor) -> None:
        """[rows, in] into `out` [rows, out]; what the layers saw is kept for `backward`."""
        self._seen = rows
        each = zip(self._weights, self._activated, self._activate, strict=False)
        for (bias, across), into, activate in each:
            rows = torch.addmm(bias, rows, across, out=into)
            activate()
        bias, across = self._weights[-1]
        torch.addmm(bias, rows, across, out=out)

    def judge(self, rows: Tensor) -> Tensor:
        """Of any number of rows [n, in], in parts that stay in the cache: [n, out]."""
        if len(rows) == self._rows:
            out = rows.new_empty(self._rows, self._width)
            self.forward(rows, out)
            return out
        whole = F.pad(rows, (0, 0, 0, -len(rows) % self._rows))
        out = whole.new_empty(len(whole), self._width)
        if not len(out):
            return out
        for part, into in zip(whole.split(self._rows), out.split(self._rows), strict=True):
            self.forward(part, into)
        return out[: len(rows)]

    def backward(self) -> None:
        """From `slope` to the parameters' gradients."""
        for operation in self._way_back:
            operation()
        torch.mm(self._first_slope, self._seen[: self._learned], out=self._first_weight_slope)


def _activation(rows: Tensor, relu: bool) -> Operation:
    """Of these very rows. NumPy's tanh takes a tenth of the time of torch's, and is as exact."""
    return rows.relu_ if relu else partial(np.tanh, rows.numpy(), out=rows.numpy())


def _gradient_of(parameter: Tensor) -> Tensor:
    """Where it is now: where a module is moved, torch has the same `grad` lie elsewhere."""
    assert parameter.grad is not None
    return parameter.grad.data
