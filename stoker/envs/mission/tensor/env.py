"""Missions as a `types.TensorEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.envs.mission.scenario import COMPONENTS, DEFAULT, load_scenario
from stoker.envs.mission.spaces import action_space, observation_space
from stoker.envs.mission.start import draws_at_start
from stoker.envs.mission.state import rules_of
from stoker.envs.mission.tensor.observe import vector
from stoker.envs.mission.tensor.raster import raster as rasters
from stoker.envs.mission.tensor.rules import added, step
from stoker.envs.mission.tensor.start import initial
from stoker.envs.mission.tensor.state import Missions, TensorRules, rules_on
from stoker.types import DeviceObs, Rng, TensorState, TensorStep


class TensorMission:
    """`stoker/Mission-v0`, n at once; its uniforms are the same in number and order."""

    metric_names = COMPONENTS

    def __init__(self, scenario: str | Mapping[str, Any] = DEFAULT, raster: bool = False) -> None:
        self._rules = rules_of(load_scenario(scenario))
        self._raster = raster
        self._rules_on: dict[torch.device, TensorRules] = {}
        self.action_space = action_space(self._rules)
        self.observation_space = observation_space(self._rules, raster)

    def initial(self, n: int, rng: Rng) -> TensorState:
        """The fleets drawn up, the map empty."""
        uniforms = rng.uniform(draws_at_start(self._rules))
        return initial(self._on(uniforms), uniforms)._asdict()

    def observe(self, state: TensorState) -> Tensor | DeviceObs:
        """What n commanders are shown."""
        missions = Missions(**state)
        rules = self._on(missions.position)
        seen = vector(rules, missions)
        return {"vector": seen, "raster": rasters(rules, missions)} if self._raster else seen

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """One tick. `action` is int64 [n, A]."""
        missions = Missions(**state)
        rules = self._on(missions.position)
        outcome = step(rules, missions, action, rng.uniform(rules.units))
        terminated = outcome.won | outcome.lost
        return TensorStep(
            outcome.state._asdict(),
            added(outcome.components),
            terminated,
            outcome.out_of_time & ~terminated,
            dict(zip(COMPONENTS, outcome.components.unbind(-1), strict=True)),
        )

    def _on(self, tensor: Tensor) -> TensorRules:
        """The rules on the device of `tensor`, where they are put once."""
        if tensor.device not in self._rules_on:
            self._rules_on[tensor.device] = rules_on(tensor.device, self._rules)
        return self._rules_on[tensor.device]
