"""What `predict` is given that cannot be read, or that no environment would give."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from stoker import PPO
from stoker.errors import ConfigError

_TINY: dict[str, Any] = {"device": "cpu", "network_arch": (8,), "n_steps": 16, "batch_size": 16}


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        ((np.zeros(4, np.float32), {}), r"as reset\(\) gives it"),
        (np.zeros((0, 4)), r"has shape \(0, 4\)"),
        ([[0.0, 1.0], [2.0]], "cannot be read"),
        ("3", "is of <U1"),
        (None, "is of object"),
        ([0.0, np.nan, 0.0, 0.0], "NaN or infinity"),
    ],
)
def test_observations_that_cannot_be_predicted_for(observation: Any, said: str) -> None:
    with PPO("MlpPolicy", "CartPole-v1", **_TINY) as model, pytest.raises(ConfigError, match=said):
        model.predict(observation)


@pytest.mark.parametrize("observation", [-1, 16, 3.7, [3, 99]])
def test_categories_that_there_are_not(observation: Any) -> None:
    with PPO("MlpPolicy", "FrozenLake-v1", **_TINY) as model:
        assert model.predict(15)[0] in range(4)
        with pytest.raises(ConfigError, match="the model was trained on"):
            model.predict(observation)


def test_leaves_of_several_lengths() -> None:
    class Pair(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Dict(
            {"a": gymnasium.spaces.Box(-1, 1, (2,)), "b": gymnasium.spaces.Box(-1, 1, (3,))}
        )
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, False, True, {}

    said = "several numbers of rows: 'a' 2, 'b' 1"
    with PPO("MlpPolicy", Pair, **_TINY) as model, pytest.raises(ConfigError, match=said):
        model.predict({"a": np.zeros((2, 2)), "b": np.zeros(3)})
