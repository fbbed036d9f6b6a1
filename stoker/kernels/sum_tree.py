"""A wide sum tree in tensors: weights of rows, which are found by where they lie in their sum.

A node has 64 children, so that a million rows are four levels: a few large steps instead of twenty
small ones. Parents are summed anew from their children, so rounding never adds up, and a row that
is given its weight twice at once does no harm. On a GPU one kernel goes down all levels; in plain
torch that is fifty.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor

from stoker.kernels.building import built

CHILDREN = 64


class SumTree:
    """Weights of `size` rows, none below 0."""

    def __init__(self, size: int, device: torch.device) -> None:
        sizes: list[int] = []
        while not sizes or sizes[-1] > CHILDREN:
            size = -(-size // CHILDREN)
            sizes.append(size * CHILDREN)
        self._whole = torch.zeros(sum(sizes), device=device)
        self.levels = list(self._whole.split(sizes))
        """The rows' weights, padded with zeros; the sums of 64 of them; and so on, to 64."""
        starts = [0, *torch.tensor(sizes).cumsum(0).tolist()[:-1]]
        self._downwards = torch.tensor(starts[::-1], device=device)

    @property
    def _on_gpu(self) -> ModuleType | None:
        return _kernels() if self._whole.is_cuda else None

    def total(self) -> Tensor:
        """The sum of all weights."""
        return self.levels[-1].sum()

    def set(self, row: Tensor, weight: Tensor) -> None:
        """Give the rows `row` [n] these weights; of a row that is there twice, either."""
        self.levels[0][row] = weight
        self._sum_up(row)

    def rebuild(self) -> None:
        """Sum everything anew: rows have been written."""
        for above in self.levels[1:]:
            above.zero_()
        self._sum_up(torch.arange(0, len(self.levels[0]), CHILDREN, device=self._whole.device))

    def _sum_up(self, row: Tensor) -> None:
        """The weights of these rows have changed."""
        if kernels := self._on_gpu:
            kernels.sum_up(self.levels, row)
            return
        for below, above in pairwise(self.levels):
            row = torch.div(row, CHILDREN, rounding_mode="floor")
            above[row] = below.view(-1, CHILDREN)[row].sum(1)

    def weigh(
        self, row: Tensor, error: Tensor, made: Tensor, least: float, alpha: float, highest: Tensor
    ) -> None:
        """Weigh the rows [n] by (|error| + least) ** alpha, if that is `made`; `highest` [] is at
        least as high from then on as what they weigh."""
        if kernels := self._on_gpu:
            kernels.weigh(self.levels[0], row, error, made, least, alpha, highest)
        else:
            new = (error.abs() + least) ** alpha
            weight = torch.where(made, new, self.levels[0][row])
            self.levels[0][row] = weight
            highest.copy_(torch.maximum(highest, weight.amax()))
        self._sum_up(row)

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """As many rows as there are numbers in `noise` [..., B], from 0 to 1, and what they weigh:
        of each B, one from each of B equal shares of the whole."""
        if kernels := self._on_gpu:
            return kernels.draw(self._whole, self._downwards, noise)
        size = noise.shape[-1]
        mass = (torch.arange(size, device=noise.device) + noise) * (self.total() / size)
        row = self.find(mass.flatten()).view_as(noise)
        return row, self.levels[0][row]

    def find(self, mass: Tensor) -> Tensor:
        """The rows at which the running sum of all weights passes `mass` [n]; never one of weight 0
        but where all are: then the first."""
        if len(mass) * CHILDREN > len(self.levels[0]):
            return self._found_among_all(mass)
        node = torch.zeros_like(mass, dtype=torch.int64)
        for level in reversed(self.levels):
            weights = level.view(-1, CHILDREN)[node]
            sums = weights.cumsum(1)
            # Sums of parts are rounded otherwise than the whole. Below the last sum, what is found
            # has a weight: the sum passes there.
            mass = torch.minimum(mass, torch.nextafter(sums[:, -1], sums.new_zeros(())))
            child = (sums <= mass[:, None]).sum(1) % CHILDREN  # where all are 0, the first
            before = (sums - weights).gather(1, child[:, None])[:, 0]
            mass = (mass - before).clamp_(min=0.0)
            node = node * CHILDREN + child
        return node

    def _found_among_all(self, mass: Tensor) -> Tensor:
        """The same by summing everything up: for very many, that takes less time."""
        sums = self.levels[0].cumsum(0, dtype=torch.float64)
        most = torch.nextafter(sums[-1], sums.new_zeros(()))
        found = torch.searchsorted(sums, torch.minimum(mass.double(), most), right=True)
        return found % len(sums)


@functools.cache
def _kernels() -> ModuleType | None:
    return built("sum_tree_on_gpu")
