"""Policy actions on a device, as environments there take them."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.types import ActionSpec


class ActionDecoder:
    """Policy actions [n, A] as environments take them; `spaces.ActionCodec` on a device.

    The bounds are made once: to make a tensor of Python's numbers in a step would wait for the GPU.
    """

    def __init__(self, spec: ActionSpec, device: torch.device) -> None:
        self._spec = spec
        self._start = torch.tensor(spec.start, dtype=torch.int64, device=device)
        low, high = (torch.tensor(bound, device=device) for bound in (spec.low, spec.high))
        finite = low.isfinite() & high.isfinite()
        self._low, self._high = low, high
        self._centre = torch.where(finite, (low + high) / 2, 0.0)
        self._half = torch.where(finite, (high - low) / 2, 1.0)

    def __call__(self, actions: Tensor) -> Tensor:
        if self._spec.continuous:
            actions = (self._centre + self._half * actions).clamp(self._low, self._high)
        elif self._spec.nvec:
            actions = actions + self._start
        shaped = actions.reshape(len(actions), *self._spec.shape)
        return shaped.to(getattr(torch, self._spec.dtype))
