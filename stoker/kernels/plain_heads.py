"""Action distributions and their slopes by hand, in NumPy, for a CPU.

The same as the modules of `nn.heads`. Where rows are few, starting one of torch's operations takes
longer than the operation, and autograd twice as long again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor

_NEVER = np.finfo(np.float32).min
_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class PlainHead(ABC):
    """A distribution over actions [n, A], given raw outputs [n, raw_width]."""

    @abstractmethod
    def sample(
        self, raw: np.ndarray, mask: np.ndarray | None, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions [n, A] drawn by noise as `nn.heads` draws it, and their log-probabilities [n]."""

    def laid_out(self, action: np.ndarray) -> np.ndarray:
        """Actions [..., n, A], as `measure` wants those of n rows."""
        return action

    @abstractmethod
    def measure(
        self, raw: np.ndarray, mask: np.ndarray | None, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-probability of an `action` that is `laid_out`, and entropy, [n] each.

        What `slope` needs is kept until the next rows.
        """

    @abstractmethod
    def slope(self, by_log_prob: np.ndarray, by_entropy: np.ndarray, out: np.ndarray) -> None:
        """Of a loss, given its slopes by what was measured last: write that by raw to `out`."""


class PlainCategorical(PlainHead):
    """An independent choice a column. `place` [A, widest] says where among the raw outputs the
    numbers of each column's choices are, but where `padding` is."""

    def __init__(self, place: np.ndarray, padding: np.ndarray) -> None:
        self._place, self._shape = place, place.shape
        self._padding = padding if padding.any() else None

    def _log_probs(self, raw: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities and probabilities [n, A, widest]; impossible choices have 0."""
        if mask is not None:
            raw = np.where(mask, raw, _NEVER)
        if self._padding is None:
            table = raw.reshape(-1, *self._shape)
        else:
            table = raw.take(self._place, 1)  # laid out row by row, which an index is not
            table[:, self._padding] = _NEVER
        table = table - np.maximum.reduce(table, -1, keepdims=True)
        chance = np.exp(table)
        total = np.add.reduce(chance, -1, keepdims=True)
        table -= np.log(total)
        chance /= total
        return table, chance

    def sample(
        self, raw: np.ndarray, mask: np.ndarray | None, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        log_probs, _ = self._log_probs(raw, mask)
        action = (log_probs - np.log(noise)).argmax(-1)
        return action, self._chosen(log_probs, self.laid_out(action))

    def laid_out(self, action: np.ndarray) -> np.ndarray:
        rows, (columns, widest) = action.shape[-2], self._shape
        return action + widest * np.arange(rows * columns).reshape(rows, columns)

    def _chosen(self, log_probs: np.ndarray, action: np.ndarray) -> np.ndarray:
        chosen = log_probs.take(action)
        return chosen[:, 0] if self._shape[0] == 1 else np.add.reduce(chosen, -1)

    def measure(
        self, raw: np.ndarray, mask: np.ndarray | None, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        log_probs, chance = self._log_probs(raw, mask)
        entropies = -np.add.reduce(chance * log_probs, -1)
        self._last = log_probs, chance, entropies, action
        return self._chosen(log_probs, action), np.add.reduce(entropies, -1)

    def slope(self, by_log_prob: np.ndarray, by_entropy: np.ndarray, out: np.ndarray) -> None:
        log_probs, chance, entropies, action = self._last
        by_raw = log_probs + entropies[:, :, None]
        by_raw *= chance  # at once: 0 where the logarithm is as small as can be
        by_raw *= -by_entropy[:, None, None]
        by_raw -= chance * by_log_prob[:, None, None]
        by_raw.reshape(-1)[action] += by_log_prob[:, None]
        flat = len(out), -1
        out[:] = by_raw.reshape(flat) if self._padding is None else by_raw[:, ~self._padding]


class PlainBernoulli(PlainHead):
    """An independent coin a column."""

    def sample(
        self, raw: np.ndarray, mask: np.ndarray | None, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        action = (noise < _sigmoid(raw)).astype(np.int64)
        return action, _coins(raw, self.laid_out(action))

    def laid_out(self, action: np.ndarray) -> np.ndarray:
        return action.astype(np.float32)

    def measure(
        self, raw: np.ndarray, mask: np.ndarray | None, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        heads = _sigmoid(raw)
        self._last = raw, heads, action
        return _coins(raw, action), np.add.reduce(_softplus(raw) - raw * heads, -1)

    def slope(self, by_log_prob: np.ndarray, by_entropy: np.ndarray, out: np.ndarray) -> None:
        raw, heads, action = self._last
        np.multiply(by_log_prob[:, None], action - heads, out=out)
        out -= by_entropy[:, None] * raw * heads * (1.0 - heads)


class PlainGaussian(PlainHead):
    """An independent Gaussian a column; the deviation is the same for all rows.

    Its logarithm [A] is read where it lies by then, and the slope by it is written likewise.
    """

    def __init__(self, log_std: Tensor, log_std_slope: Tensor | None = None) -> None:
        self._of_log, self._slope_of_log = log_std, log_std_slope

    @property
    def _log_std(self) -> np.ndarray:
        return self._of_log.numpy()

    def sample(
        self, raw: np.ndarray, mask: np.ndarray | None, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        log_std = self._log_std
        # By way of the action, as it is what the learner measures: rounding is the same.
        action = raw + np.exp(log_std) * noise
        return action, _bells((action - raw) * np.exp(-log_std), log_std)

    def measure(
        self, raw: np.ndarray, mask: np.ndarray | None, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        log_std = self._log_std
        scale = np.exp(-log_std)
        deviations = (action - raw) * scale
        self._last = deviations, scale
        entropy = (log_std + (0.5 + _LOG_ROOT_2_PI)).sum()
        return _bells(deviations, log_std), np.full(len(raw), entropy, np.float32)

    def slope(self, by_log_prob: np.ndarray, by_entropy: np.ndarray, out: np.ndarray) -> None:
        deviations, scale = self._last
        np.multiply(by_log_prob[:, None], deviations * scale, out=out)
        assert self._slope_of_log is not None
        self._slope_of_log.numpy()[:] = by_log_prob @ (deviations**2 - 1.0) + by_entropy.sum()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _coins(raw: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.add.reduce(action * raw - _softplus(raw), -1)


def _bells(deviations: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    return np.add.reduce(-0.5 * deviations**2 - log_std - _LOG_ROOT_2_PI, -1)
