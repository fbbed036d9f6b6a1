"""What every policy is: something that sees, scaled by running statistics, and draws noise."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from stoker.nn.normalise import RunningMoments
from stoker.types import DeviceObs, EnvSpec


class ObservingPolicy(nn.Module):
    """Keeps the statistics of vector leaves, where they are normalised, and the generator."""

    def __init__(self, spec: EnvSpec, normalize_obs: bool) -> None:
        super().__init__()
        leaves = spec.observation
        self._vectors = [n for n, leaf in leaves.items() if leaf.kind == "vector" and normalize_obs]
        self.generator = torch.Generator()

    def _keep_moments(self, spec: EnvSpec) -> None:
        """Called when other modules are made: parameters and buffers have their order from this."""
        shapes = [spec.observation[name].shape for name in self._vectors]
        self.moments = nn.ModuleDict(
            {str(i): RunningMoments(math.prod(shape)) for i, shape in enumerate(shapes)}
        )

    def seed(self, seed: int, device: torch.device) -> None:
        """Where this policy's noise comes from."""
        self.generator = torch.Generator(device).manual_seed(seed)

    def normalised(self, obs: DeviceObs) -> DeviceObs:
        """What is seen, as the network is to see it."""
        if not self._vectors:
            return obs
        scaled = dict(obs)
        for name, moments in zip(self._vectors, self.moments.values(), strict=True):
            assert isinstance(moments, RunningMoments)
            scaled[name] = moments.standardise(obs[name].reshape(len(obs[name]), -1))
        return scaled

    @property
    def plain_moments(self) -> RunningMoments | None:
        """Of the observation, where it is one vector and normalised."""
        moments = list(self.moments.values())
        assert len(moments) < 2
        return cast(RunningMoments, moments[0]) if moments else None

    def update_moments(self, obs: DeviceObs, valid: Tensor) -> None:
        """Take a rollout's observations [T, N, ...] into the running statistics."""
        for name, moments in zip(self._vectors, self.moments.values(), strict=True):
            assert isinstance(moments, RunningMoments)
            moments.update(obs[name].reshape(valid.numel(), -1), valid.flatten())
