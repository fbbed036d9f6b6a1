"""Priorities of rows: a wide sum tree in tensors, sampled and updated without asking the device.

A node has 64 children, so that a million rows are four levels: a few large steps instead of twenty
small ones. Parents are summed anew from their children, so rounding never adds up, and a row that
is updated twice at once does no harm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CHILDREN = 64
_LEAST = 1e-6  # added to errors: a row that was predicted well is sampled now and then all the same


class SumTree:
    """Weights of `size` rows, none below 0; rows are found by where they lie in the sum."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.levels: list[Tensor] = []
        """The rows' weights, padded with zeros; the sums of 64 of them; and so on, to 64."""
        while not self.levels or len(self.levels[-1]) > _CHILDREN:
            size = -(-size // _CHILDREN)
            self.levels.append(torch.zeros(size * _CHILDREN, device=device))

    def total(self) -> Tensor:
        """The sum of all weights."""
        return self.levels[-1].sum()

    def set(self, row: Tensor, weight: Tensor) -> None:
        """Give the rows `row` [n] these weights; of a row that is there twice, either."""
        self.levels[0][row] = weight
        for below, above in zip(self.levels, self.levels[1:], strict=False):
            row = torch.div(row, _CHILDREN, rounding_mode="floor")
            above[row] = below.view(-1, _CHILDREN)[row].sum(1)

    def rebuild(self) -> None:
        """Sum everything anew: rows have been written."""
        for below, above in zip(self.levels, self.levels[1:], strict=False):
            above.zero_()
            above[: len(below) // _CHILDREN] = below.view(-1, _CHILDREN).sum(1)

    def find(self, mass: Tensor) -> Tensor:
        """The rows at which the running sum of all weights passes `mass` [n]; never one of weight 0
        but where all are: then the first."""
        if len(mass) * _CHILDREN > len(self.levels[0]):
            return self._found_among_all(mass)
        node = torch.zeros_like(mass, dtype=torch.int64)
        for level in reversed(self.levels):
            weights = level.view(-1, _CHILDREN)[node]
            sums = weights.cumsum(1)
            # Sums of parts are rounded otherwise than the whole. Below the last sum, what is found
            # has a weight: the sum passes there.
            mass = torch.minimum(mass, torch.nextafter(sums[:, -1], sums.new_zeros(())))
            child = (sums <= mass[:, None]).sum(1) % _CHILDREN  # where all are 0, the first
            before = (sums - weights).gather(1, child[:, None])[:, 0]
            mass = (mass - before).clamp_(min=0.0)
            node = node * _CHILDREN + child
        return node

    def _found_among_all(self, mass: Tensor) -> Tensor:
        """The same by summing everything up: for very many, that takes less time."""
        sums = self.levels[0].cumsum(0, dtype=torch.float64)
        most = torch.nextafter(sums[-1], sums.new_zeros(()))
        found = torch.searchsorted(sums, torch.minimum(mass.double(), most), right=True)
        return found % len(sums)


class Sampled(NamedTuple):
    """Rows, and how much each counts so that a mean is as if all were as likely."""

    row: Tensor  # int64 [..., B]
    weight: Tensor  # [..., B]


class Priorities:
    """Which rows may be sampled, and how likely each is: in proportion to priority ** alpha."""

    def __init__(self, rows: int, alpha: float, device: torch.device) -> None:
        self._alpha, self.tree = alpha, SumTree(rows, device)
        self.highest = torch.ones((), device=device)
        """Of all priorities so far, ** alpha: what new rows have."""

    def admit(self, row: Tensor, admitted: Tensor, is_new: Tensor) -> None:
        """Let rows be sampled, or no longer. One that may be already keeps its priority, unless
        it `is_new`: what was there before is gone."""
        before = self.tree.levels[0][row]
        fresh = torch.where(is_new | (before == 0), self.highest, before)
        self.tree.set(row, torch.where(admitted, fresh, 0.0))

    def sample(self, noise: Tensor, beta: Tensor) -> Sampled:
        """As many rows as there are numbers in `noise` [..., B], from 0 to 1: of each B, one from
        each of B equal shares of the whole. Weights are at most 1, and 1 for the least likely of
        these; all 0 where there is no row to sample."""
        size = noise.shape[-1]
        shares = torch.arange(size, device=noise.device)
        mass = (shares + noise) * (self.tree.total() / size)
        row = self.tree.find(mass.flatten()).view_as(noise)
        priority = self.tree.levels[0][row]
        weight = (priority.amin(-1, keepdim=True) / priority) ** beta
        return Sampled(row, torch.where(priority > 0, weight, 0.0))

    def update(self, row: Tensor, error: Tensor, made: Tensor) -> None:
        """Rows were predicted with these errors [B]; where the update was not `made`, all stay."""
        new = (error.abs() + _LEAST) ** self._alpha
        priority = torch.where(made, new, self.tree.levels[0][row])
        self.tree.set(row, priority)
        self.highest.copy_(torch.maximum(self.highest, priority.amax()))
