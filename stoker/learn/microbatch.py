"""A minibatch's gradient from parts of it, where memory is too short for the whole.

The parts' gradients, weighted by their shares of the valid rows, sum to that of the minibatch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.types import Loss, Minibatch


def gradient(loss: Callable[[Minibatch], Loss], batch: Minibatch, rows: int) -> Loss:
    """The loss of `batch`; its gradient is added to the parameters', from `rows` at a time."""
    if rows >= len(batch.valid):
        whole = loss(batch)
        whole.total.backward()
        return whole
    weight, parts = batch.valid.to(batch.advantage.dtype), []
    for some in (slice(first, first + rows) for first in range(0, len(weight), rows)):
        share = weight[some].sum() / weight.sum().clamp(min=1.0)
        part = pytree.tree_map(share.mul, loss(batch.take(some)))
        part.total.backward()
        parts.append(pytree.tree_map(Tensor.detach, part))
    return pytree.tree_map(lambda *of: torch.stack(of).sum(0), *parts)
