"""Action distributions: from the actor's raw output to actions, log-probabilities and entropy.

Sampling takes its noise as a tensor, so it is a pure function that can be compiled, captured and
repeated.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from stoker.types import ActionSpec, Rng

_LEAST = 2.0**-30  # of an exponential number, whose logarithm is taken


class Head(nn.Module):
    """One distribution over actions [n, A], given raw outputs [n, raw_width]."""

    raw_width: int

    @abstractmethod
    def draw_noise(self, rows: int, generator: Generator) -> Tensor:
        """What `sample` needs for `rows` rows."""

    @abstractmethod
    def noise_of(self, rng: Rng) -> Tensor:
        """The same for the rows of `rng`, from numbers that can be told again."""

    @abstractmethod
    def sample(self, raw: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [n, A] drawn from the distribution, and their log-probabilities [n]."""

    @abstractmethod
    def greedy(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        """The most likely actions [n, A]."""

    @abstractmethod
    def measure(self, raw: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of `action` and entropy of the distribution, [n] each."""


class Columns(nn.Module):
    """Choices of Discrete and MultiDiscrete actions: a row of numbers for each column's."""

    place: Tensor
    padding: Tensor

    def __init__(self, nvec: tuple[int, ...]) -> None:
        super().__init__()
        widest = max(nvec)
        # By NumPy: on torch's meta device, where sizes are asked for, this would import a compiler.
        choice = np.arange(widest)
        padded = choice >= np.array(nvec)[:, None]
        start = np.cumsum([0, *nvec[:-1]])[:, None]
        place = torch.tensor(np.where(padded, 0, start + choice).tolist())
        self.ragged = min(nvec) < widest
        self.shape = (len(nvec), widest)
        self.register_buffer("place", place, persistent=False)  # [A, widest]
        self.register_buffer("padding", torch.tensor(padded.tolist()), persistent=False)

    def forward(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        """Numbers [n, sum of choices] as [n, A, widest]; impossible choices get the least there is.

        `mask` says which are possible, and so does a column that is narrower than the widest.
        """
        never = torch.finfo(raw.dtype).min
        if mask is not None:
            raw = raw.masked_fill(~mask, never)
        if self.ragged:
            return raw[:, self.place].masked_fill(self.padding, never)
        return raw.unflatten(1, self.shape)


class CategoricalHead(Head):
    """Discrete and MultiDiscrete: an independent choice a column, padded to the widest."""

    def __init__(self, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.raw_width = sum(nvec)
        self.columns = Columns(nvec)
        self._shape = self.columns.shape

    def _log_probs(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        """Log-probabilities [n, A, widest]; impossible choices get a finite, vanishing one."""
        return F.log_softmax(self.columns(raw, mask), dim=-1)

    def draw_noise(self, rows: int, generator: Generator) -> Tensor:
        shape = (rows, *self._shape)
        return torch.empty(shape, device=generator.device).exponential_(generator=generator)

    def noise_of(self, rng: Rng) -> Tensor:
        return (-torch.log1p(-rng.uniform(*self._shape))).clamp(min=_LEAST)

    def sample(self, raw: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self._log_probs(raw, mask)
        # The Gumbel trick: the arg-max of log p - log E, with E exponential, is distributed as p.
        action = (log_probs - noise.log()).argmax(-1)
        return action, _chosen(log_probs, action)

    def greedy(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        return self._log_probs(raw, mask).argmax(-1)

    def measure(self, raw: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self._log_probs(raw, mask)
        entropy = -(log_probs.exp() * log_probs).sum((-1, -2))
        return _chosen(log_probs, action), entropy


def _chosen(log_probs: Tensor, action: Tensor) -> Tensor:
    """Log-probability [n] of the choices `action` [n, A] among `log_probs` [n, A, widest]."""
    return log_probs.gather(-1, action.unsqueeze(-1)).sum((-1, -2))


class BernoulliHead(Head):
    """MultiBinary: an independent coin a column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.raw_width = width

    def draw_noise(self, rows: int, generator: Generator) -> Tensor:
        return torch.rand(rows, self.raw_width, generator=generator, device=generator.device)

    def noise_of(self, rng: Rng) -> Tensor:
        return rng.uniform(self.raw_width)

    def sample(self, raw: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        action = (noise < raw.sigmoid()).long()
        return action, self._log_prob(raw, action)

    def greedy(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        return (raw > 0).long()

    def measure(self, raw: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        entropy = F.softplus(raw) - raw * raw.sigmoid()
        return self._log_prob(raw, action), entropy.sum(-1)

    def _log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        flips = F.binary_cross_entropy_with_logits(raw, action.to(raw.dtype), reduction="none")
        return -flips.sum(-1)


class GaussianHead(Head):
    """Box: an independent Gaussian a column; the deviation is learned and the same everywhere."""

    def __init__(self, width: int, log_std_init: float) -> None:
        super().__init__()
        self.raw_width = width
        self.log_std = nn.Parameter(torch.full((width,), log_std_init))

    def draw_noise(self, rows: int, generator: Generator) -> Tensor:
        return torch.randn(rows, self.raw_width, generator=generator, device=generator.device)

    def noise_of(self, rng: Rng) -> Tensor:
        return rng.normal(self.raw_width)

    def sample(self, raw: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        action = raw + self.log_std.exp() * noise
        return action, self._log_prob(raw, action)

    def greedy(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        return raw

    def measure(self, raw: Tensor, mask: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return self._log_prob(raw, action), entropy.expand(len(raw))

    def _log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        deviations = (action - raw) * torch.exp(-self.log_std)
        return (-0.5 * deviations**2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def make_head(spec: ActionSpec, log_std_init: float) -> Head:
    """The distribution for an action space."""
    if spec.nvec:
        return CategoricalHead(spec.nvec)
    if spec.kind == "multi_binary":
        return BernoulliHead(spec.width)
    return GaussianHead(spec.width, log_std_init)
