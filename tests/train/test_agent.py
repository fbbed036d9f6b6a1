"""The Python interface, as a user of Stable-Baselines3 would call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tasks
import torch

import stoker
from stoker import PPO
from stoker.errors import ConfigError

_TINY: dict[str, Any] = {"device": "cpu", "n_steps": 32, "batch_size": 32, "network_arch": (16,)}


def test_it_learns_in_one_line_and_predicts() -> None:
    with PPO("MlpPolicy", "CartPole-v1", **_TINY, eval_episodes=0).learn(64) as model:
        assert model.num_timesteps == 64
        action, state = model.predict(np.zeros(4, np.float32), deterministic=True)
        assert action in (0, 1)
        assert action.shape == ()
        assert state is None
        actions, _ = model.predict(np.zeros((5, 4), np.float32))
        assert actions.shape == (5,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: "tasks:MatchPair",
        lambda: tasks.MatchPair,
        lambda: lambda: tasks.MatchPair(),
        lambda: tasks.MatchPair(),
        lambda: gymnasium.vector.SyncVectorEnv([tasks.MatchPair] * 3),
    ],
    ids=["id", "class", "function", "environment", "vector"],
)
def test_an_environment_can_be_given_in_any_form(make: Any) -> None:
    with PPO("MlpPolicy", make(), **_TINY, eval_episodes=0).learn(32) as model:
        action, _ = model.predict(model_observation := np.zeros(7, np.float32))
        assert model_observation.shape == (7,)
        assert tasks.MatchPair.action_space.contains(action)


def test_a_single_environment_shrinks_the_minibatch_and_says_so() -> None:
    with pytest.warns(UserWarning, match="counts as 1"):
        model = PPO("MlpPolicy", tasks.Count(), preset="heavy", device="cpu", network_arch=(8,))
    assert model.config.total_batch == 256
    assert model.config.minibatch == 256


def test_continuous_actions_come_on_the_environments_scale() -> None:
    with PPO("MlpPolicy", "Pendulum-v1", **_TINY, log_std_init=3.0) as model:
        actions, _ = model.predict(np.zeros((200, 3), np.float32))
        assert actions.shape == (200, 1)
        assert np.abs(actions).max() == 2.0  # wide noise, clipped to the bounds


def test_masked_actions_are_never_predicted() -> None:
    with PPO("MlpPolicy", tasks.Masked, **_TINY) as model:
        mask = np.array([0, 0, 1, 0, 0, 0], bool)
        for deterministic in (True, False):
            action, _ = model.predict(
                np.zeros(1, np.float32), deterministic=deterministic, action_mask=mask
            )
            assert action == 2


def test_dict_observations_are_predicted_alone_and_in_batches() -> None:
    space = tasks.EchoDict.observation_space
    with PPO("MultiInputPolicy", tasks.EchoDict, **_TINY) as model:
        assert model.predict(space.sample())[0].shape == (3,)
        several = [space.sample() for _ in range(4)]
        batch = {key: np.stack([obs[key] for obs in several]) for key in space}
        assert model.predict(batch)[0].shape == (4, 3)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    with PPO("MlpPolicy", "CartPole-v1", **_TINY, eval_episodes=0).learn(256) as model:
        model.save(tmp_path / "model")
        expected, _ = model.predict(obs, deterministic=True)
        weights = {name: value.clone() for name, value in model.policy.state_dict().items()}
    loaded = PPO.load(tmp_path / "model", device="cpu")
    assert loaded.num_timesteps == 256
    assert (loaded.predict(obs, deterministic=True)[0] == expected).all()
    for name, value in loaded.policy.state_dict().items():
        assert torch.equal(value, weights[name])
    with pytest.raises(ConfigError, match="without an environment"):
        loaded.learn(32)


def test_a_loaded_model_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    settings = {**_TINY, "eval_episodes": 0, "lr_schedule": "constant"}
    with PPO("MlpPolicy", "CartPole-v1", **settings).learn(96) as model:
        model.save(tmp_path / "model")
        model.learn(96)
    with PPO.load(tmp_path / "model", env="CartPole-v1", device="cpu") as loaded:
        loaded.learn(96)
    for name, value in loaded.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[name]), name


def test_learning_in_two_parts_is_learning_in_one(tmp_path: Path) -> None:
    """With counters that go on, schedules do too: the second half of the run is the second half."""
    settings = {**_TINY, "eval_episodes": 0, "lr_schedule": "constant", "runs_dir": str(tmp_path)}
    with PPO("MlpPolicy", "CartPole-v1", **settings, run_name="whole").learn(128) as whole:
        pass
    with PPO("MlpPolicy", "CartPole-v1", **settings, run_name="halves").learn(64) as halves:
        halves.learn(64, reset_num_timesteps=False)
    assert halves.num_timesteps == whole.num_timesteps == 128
    for name, value in halves.policy.state_dict().items():
        assert torch.equal(value, whole.policy.state_dict()[name]), name
    lines = [(tmp_path / n / "metrics.jsonl").read_text().count("\n") for n in ("whole", "halves")]
    assert lines == [4, 4]


def test_a_callback_can_stop_training() -> None:
    seen = []

    def stop_at_three(progress: Any) -> bool:
        seen.append(progress.iteration)
        return progress.iteration < 3

    with PPO("MlpPolicy", "CartPole-v1", **_TINY).learn(10_000, callback=stop_at_three) as model:
        assert seen == [1, 2, 3]
        assert model.outcome is not None
        assert model.outcome.state == "stopped"


def test_nothing_is_written_unless_the_run_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PPO("MlpPolicy", "CartPole-v1", **_TINY, eval_episodes=0).learn(32).close()
    assert not list(tmp_path.iterdir())
    PPO("MlpPolicy", "CartPole-v1", **_TINY, eval_episodes=0, run_name="named").learn(32).close()
    assert (tmp_path / "runs/named/status.json").exists()
    assert PPO.load(tmp_path / "runs/named", device="cpu").num_timesteps == 32


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"policy": "LstmPolicy"}, "MlpPolicy"),
        ({"n_stepz": 3}, "n_steps"),
        ({"policy_kwargs": {"activation_fn": "relu"}}, "activation"),
        ({"env": 3}, "VectorEnv"),
        ({"env": "CartPole-v7"}, "CartPole-v1"),
        ({"preset": "hefty"}, "heavy"),
    ],
)
def test_mistakes_are_explained(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PPO(**{"policy": "MlpPolicy", "env": "CartPole-v1", "device": "cpu"} | arguments)


def test_policy_kwargs_are_understood() -> None:
    with PPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"net_arch": [8, 4]}) as model:
        assert model.config.network.network_arch == (8, 4)


def test_the_train_room_is_a_function_too(tmp_path: Path) -> None:
    settings = {"env": tasks.Count.__name__, "timesteps": 64, **_TINY, "runs_dir": str(tmp_path)}
    outcome = stoker.train(stoker.resolve(settings | {"env": "tasks:Count", "run_name": "count"}))
    assert outcome.state == "finished"
    assert outcome.reward == 5.0
    assert outcome.path == tmp_path / "count"
