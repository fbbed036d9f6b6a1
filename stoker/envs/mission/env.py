"""The mission as a Gymnasium environment, `stoker/Mission-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from stoker.envs.mission.observe import vector
from stoker.envs.mission.orders import Action
from stoker.envs.mission.picture import picture
from stoker.envs.mission.raster import raster
from stoker.envs.mission.rules import step
from stoker.envs.mission.scenario import COMPONENTS, DEFAULT, load_scenario
from stoker.envs.mission.spaces import action_space, observation_space
from stoker.envs.mission.start import draws_at_start, initial
from stoker.envs.mission.state import State, rules_of
from stoker.errors import ConfigError, EnvError

Observation = np.ndarray | dict[str, np.ndarray]


class MissionEnv(gymnasium.Env[Observation, np.ndarray]):
    """Command a few attackers, each with an action of its own, to capture a guarded zone.

    All chance is drawn from `np_random` as float32 uniforms: `draws_at_start` of them a reset and
    one a unit a step.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    metric_names = COMPONENTS

    def __init__(
        self,
        scenario: str | Mapping[str, Any] = DEFAULT,
        raster: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(
                f"render_mode is {render_mode!r}; Mission draws 'rgb_array', or nothing (None)."
            )
        self.render_mode = render_mode
        self.rules = rules_of(load_scenario(scenario))
        self.state: State | None = None
        self._raster = raster
        self.action_space = action_space(self.rules)
        self.observation_space = observation_space(self.rules, raster)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = initial(self.rules, self._uniforms(draws_at_start(self.rules)))
        return self._observe(self.state), {}

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.state is None:
            raise EnvError("Mission was stepped before it was reset; call reset() first.")
        action = self._checked(action)
        outcome = step(self.rules, self.state, action, self._uniforms(self.rules.units))
        self.state = outcome.state
        components = outcome.components.tolist()
        info = {
            "metrics": dict(zip(COMPONENTS, components, strict=True)),
            "is_success": outcome.won,
        }
        terminated = outcome.won or outcome.lost
        return (
            self._observe(self.state),
            sum(components),
            terminated,
            outcome.out_of_time and not terminated,
            info,
        )

    def render(self) -> np.ndarray | None:
        if self.render_mode is None or self.state is None:
            return None
        return picture(self.rules, self.state)

    def _uniforms(self, n: int) -> np.ndarray:
        return self.np_random.random(n, np.float32)

    def _checked(self, action: np.ndarray) -> np.ndarray:
        choices = np.asarray(action)
        wanted = f"{self.rules.attackers} whole numbers from 0 to {len(Action) - 1}"
        if choices.shape != (self.rules.attackers,) or choices.dtype.kind not in "iu":
            raise EnvError(f"The action is {action!r}; expected {wanted}, one for each attacker.")
        if choices.min() < 0 or choices.max() >= len(Action):
            raise EnvError(f"The action is {choices.tolist()}; expected {wanted}.")
        return choices

    def _observe(self, state: State) -> Observation:
        seen = vector(self.rules, state)
        return {"vector": seen, "raster": raster(self.rules, state)} if self._raster else seen
