"""A rollout whose environments step on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.storage.rollout import RolloutStorage
from stoker.types import TensorBatch


class DeviceStorage(RolloutStorage):
    """Outcomes are written where they arise. Every row has one.

    Final observations are judged as they are seen: by the same weights, as this is in step.
    """

    def write_outcome(self, t: int, batch: TensorBatch, final_value: Tensor) -> None:
        """What came of step `t`, with V(final_obs) of every environment."""
        kept = self._rollout
        kept.reward[t] = batch.reward
        kept.terminated[t] = batch.terminated
        kept.truncated[t] = batch.truncated
        kept.final_value[t] = torch.where(batch.truncated, final_value, 0.0)
        kept.valid[t] = True
