"""Pools whose environments step on the device: their contract, and what they offer the host."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.pools.base import BasePool
from stoker.types import DeviceObs, EnvSpec, EpisodeJournal, HostObs, StepBatch, TensorBatch


class DevicePool(BasePool):
    """N environments on `device`. A collector begins them, then gives each step a row to write to.

    For whoever has NumPy arrays there is `step`, and `send` and `recv`, as in every pool.
    """

    capturable = False
    """Whether `step_into` reads and writes only tensors that stay where they are."""

    def __init__(self, spec: EnvSpec, n_envs: int, device: torch.device) -> None:
        super().__init__(spec, n_envs)
        self.device = device
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        """The number of the last step. It stays where it is."""
        self._obs: DeviceObs = {}
        self._answer: StepBatch | None = None

    @property
    def obs(self) -> DeviceObs:
        """What every environment sees, [N, ...], on the device; `step_into` leaves it be."""
        return self._obs

    @abstractmethod
    def begin(self, *seeds: int) -> None:
        """Start every environment. Each seed has an equal share of them, which goes as if alone."""

    @abstractmethod
    def step_into(self, row: TensorBatch, actions: Tensor, count: Tensor) -> None:
        """Step everyone with policy actions [N, A]; what comes of it is written to `row`."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Where everyone stands, by name, as far as it can be told; go on with `restore`."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> np.ndarray:
        """Stand where `state()` was taken; the numbers of those that began anew instead."""

    def counts(self, steps: int) -> Tensor:
        """Numbers [steps] of the steps to come, which `step_into` is to be given one by one."""
        counts = self.count + torch.arange(1, steps + 1, device=self.device)
        self.count += steps
        return counts

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment. Where they stand is kept by `state`, not in a journal."""
        assert journal is None
        self.begin(seed)
        nothing = torch.zeros(self.n_envs, device=self.device)
        never = nothing.bool()
        unknown = dict.fromkeys(self.spec.metric_names, nothing + torch.nan)
        first = TensorBatch(self._obs, nothing, never, never, self._obs, unknown)
        return on_host(first, self._everyone)

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        """What came of the last `send`."""
        assert self._answer is not None
        return self._answer

    @property
    def seen(self) -> tuple[HostObs, None]:
        """See `types.Pool`; copies."""
        seen = {leaf: value.cpu().numpy() for leaf, value in self._obs.items()}  # sync: asked for
        return seen, None

    def close(self) -> None:
        """Nothing is open."""


def where_over(over: Tensor, this: Tensor, other: Tensor) -> Tensor:
    """Rows of `this` where an episode is `over` [N], else of `other`."""
    return torch.where(over.view(-1, *(1,) * (other.dim() - 1)), this, other)


def write(to: TensorBatch, given: TensorBatch) -> None:
    """Every field of `given` into the tensors of `to`."""
    to.reward.copy_(given.reward)
    to.terminated.copy_(given.terminated)
    to.truncated.copy_(given.truncated)
    for kept, new in ((to.obs, given.obs), (to.final_obs, given.final_obs)):
        for leaf, value in kept.items():
            value.copy_(new[leaf])
    for name, value in to.metrics.items():
        value.copy_(given.metrics[name])


def on_host(batch: TensorBatch, env_ids: np.ndarray) -> StepBatch:
    """`batch`, of the environments `env_ids`, in arrays."""

    def host(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: host(part) for name, part in value.items()}
        return value.cpu().numpy()  # sync: whoever asked is on the host

    rest = {name: host(value) for name, value in batch._asdict().items()}
    valid = np.ones(len(env_ids), bool)
    return StepBatch(env_ids=env_ids.copy(), action_mask=None, valid=valid, **rest)
