"""Weights on their way from the learner to the collector, with a version."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn


class Weights:
    """Hands the learner's newest weights and statistics to the copy of the policy that acts.

    Neither side waits for the other: the learner writes to a third copy, and the collector takes
    that over when it begins a rollout. On a GPU the copies are ordered by events, on the device.
    """

    def __init__(self, learning: nn.Module, acting: nn.Module) -> None:
        self._learning, self._acting = _tensors(learning), _tensors(acting)
        self._between = [tensor.detach().clone() for tensor in self._learning]
        self._turn = threading.Lock()
        self._version = 0
        on_gpu = any(tensor.is_cuda for tensor in self._learning)
        self._last_copy = torch.cuda.Event() if on_gpu else None

    def publish(self, version: int) -> None:
        """Called by the learner: its weights as they are now are `version`."""
        with self._turn:
            self._copy(self._learning, self._between)
            self._version = version

    def take(self) -> int:
        """Called by the collector: act with the newest weights published; their version."""
        with self._turn:
            self._copy(self._between, self._acting)
            return self._version

    @torch.no_grad()
    def _copy(self, source: list[Tensor], target: list[Tensor]) -> None:
        if self._last_copy is not None:
            torch.cuda.current_stream().wait_event(self._last_copy)
        torch._foreach_copy_(target, source)
        if self._last_copy is not None:
            self._last_copy.record()


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
