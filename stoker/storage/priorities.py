"""Priorities of rows, sampled and updated without asking the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stoker.kernels.sum_tree import SumTree

_LEAST = 1e-6  # added to errors: a row that was predicted well is sampled now and then all the same


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
        row, priority = self.tree.draw(noise)
        weight = (priority.amin(-1, keepdim=True) / priority) ** beta
        return Sampled(row, torch.where(priority > 0, weight, 0.0))

    def update(self, row: Tensor, error: Tensor, made: Tensor) -> None:
        """Rows were predicted with these errors [B]; where the update was not `made`, all stay."""
        self.tree.weigh(row, error, made, _LEAST, self._alpha, self.highest)
