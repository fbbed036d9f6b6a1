"""The Python interface, as a user of Stable-Baselines3 would call it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tasks
import torch
from torch import nn

import stoker
from stoker import DQN, PPO
from stoker.collect import gather
from stoker.collect.overlapped import OverlappedCollector
from stoker.errors import CheckpointError, ConfigError, EnvError, TrainingError
from stoker.runs.folder import RunFolder
from stoker.train.agent import Agent
from stoker.train.start import resume

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
    with pytest.raises(ConfigError, match="has no environment"):
        loaded.learn(32)


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_model_is_not_saved_without_a_name(path: str) -> None:
    with (
        PPO("MlpPolicy", "CartPole-v1", **_TINY) as model,
        pytest.raises(CheckpointError, match="names no folder to save to"),
    ):
        model.save(path)


def test_a_model_is_loaded_from_within_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PPO("MlpPolicy", "CartPole-v1", **_TINY) as model:
        model.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    assert PPO.load(".", device="cpu").spec.name == "CartPole-v1"


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


@pytest.fixture
def nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted, so none may be dropped for a machine that is busy."""
    monkeypatch.setattr(gather, "_SHORTEST_TAIL_S", 60.0)


@pytest.mark.usefixtures("nobody_is_late")
@pytest.mark.parametrize("pool", ["inline", "process"])
def test_overlapped_learning_goes_on_where_it_stopped(pool: str) -> None:
    lags: list[float] = []

    def note(progress: Any) -> None:
        lags.append(progress.metrics["lag/max"])

    settings = {**_TINY, "eval_episodes": 0, "collect": "overlap", "pool": pool, "n_envs": 2}
    with PPO("MlpPolicy", "CartPole-v1", **settings).learn(256, callback=note) as model:
        assert model.num_timesteps == 256
        weights = {name: value.clone() for name, value in model.policy.state_dict().items()}
        model.learn(192, reset_num_timesteps=False, callback=note)
        assert model.num_timesteps == 448
        assert any(
            not torch.equal(value, weights[name])
            for name, value in model.policy.state_dict().items()
        )
        assert model.predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert lags == [0, 1, 1, 1, 0, 1, 1]  # the last of a run begins no other


def test_overlapped_learning_that_a_callback_stopped_goes_on_with_what_was_under_way() -> None:
    settings = {**_TINY, "eval_episodes": 0, "collect": "overlap"}
    lags: list[float] = []

    def stop_at_three(progress: Any) -> bool:
        lags.append(progress.metrics["lag/max"])
        return len(lags) != 3

    with PPO("MlpPolicy", "CartPole-v1", **settings).learn(3200, callback=stop_at_three) as model:
        model.learn(64, reset_num_timesteps=False, callback=stop_at_three)
        assert model.num_timesteps == 5 * 32
    assert lags == [0, 1, 1, 1, 1]


@pytest.mark.usefixtures("nobody_is_late")
@pytest.mark.parametrize("pool", ["inline", "process"])
@pytest.mark.parametrize("collect", ["step", "overlap"])
def test_learning_goes_on_after_an_error_of_an_environment(
    collect: str, pool: str, tmp_path: Path
) -> None:
    sorrow, seen = tmp_path / "sorrow", []

    def sadden(progress: Any) -> None:
        seen.append(progress.iteration)
        if len(seen) == 3:
            sorrow.touch()

    settings = {**_TINY, "eval_episodes": 0, "collect": collect, "pool": pool, "n_envs": 2}
    with PPO("MlpPolicy", partial(tasks.Moody, str(sorrow)), **settings) as model:
        with pytest.raises(EnvError, match="not finite"):
            model.learn(10_000, callback=sadden)
        sorrow.unlink()
        for _ in range(2):
            model.learn(256)
            assert model.num_timesteps == 256


def test_learning_goes_on_after_an_interruption_while_it_waits_for_a_rollout() -> None:
    settings = {**_TINY, "eval_episodes": 0, "collect": "overlap", "pool": "process", "n_envs": 2}
    with PPO("MlpPolicy", "CartPole-v1", **settings) as model:
        assert model._parts is not None
        collector = model._parts.collector
        assert isinstance(collector, OverlappedCollector)
        answers, calls = collector._answers, iter(range(100))

        class Interrupting:
            """A second Ctrl-C, at the third rollout."""

            def get(self) -> Any:
                if next(calls) == 2:
                    raise KeyboardInterrupt
                return answers.get()

            def put(self, answer: Any) -> None:
                answers.put(answer)

        collector._answers = Interrupting()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            model.learn(10_000)
        lags: list[float] = []
        model.learn(256, callback=lambda progress: lags.append(progress.metrics["lag/max"]))
        assert lags == [0, 1, 1, 1]


def test_saving_in_a_callback_does_not_start_the_clocks_anew(tmp_path: Path) -> None:
    with PPO("MlpPolicy", "CartPole-v1", **{**_TINY, "eval_episodes": 0}) as model:
        model.learn(256, callback=lambda _: model.save(tmp_path / "model"))
        assert model.outcome is not None
        assert model.outcome.shares["other"] < 0.9


def test_a_callback_can_stop_training() -> None:
    seen = []

    def stop_at_three(progress: Any) -> bool:
        seen.append(progress.iteration)
        return progress.iteration < 3

    with PPO("MlpPolicy", "CartPole-v1", **_TINY).learn(10_000, callback=stop_at_three) as model:
        assert seen == [1, 2, 3]
        assert model.outcome is not None
        assert model.outcome.state == "stopped"


@pytest.mark.parametrize("no", [False, np.False_])
def test_a_callback_stops_training_with_either_false(no: Any) -> None:
    with PPO("MlpPolicy", "tasks:Count", n_steps=16, batch_size=16, pool="inline") as model:
        model.learn(10_000, lambda progress: no)
        assert model.num_timesteps == 16


@pytest.mark.parametrize("call", [lambda model: model.learn(16), lambda model: model.close()])
def test_a_callback_cannot_learn_or_close(call: Any) -> None:
    with PPO("MlpPolicy", "tasks:Count", n_steps=16, batch_size=16, pool="inline") as model:
        with pytest.raises(TrainingError, match=r"while learn\(\) is under way.*return False"):
            model.learn(64, lambda progress: call(model))
        model.learn(32)
        assert model.num_timesteps == 32


def test_steps_that_are_refused_leave_the_count_as_it_is() -> None:
    with PPO("MlpPolicy", "tasks:Count", n_steps=16, batch_size=16, pool="inline") as model:
        model.learn(16)
        with pytest.raises(ConfigError, match="total_timesteps is 0"):
            model.learn(0)
        assert model.num_timesteps == 16


def test_each_learning_from_the_start_has_a_run_of_its_own(tmp_path: Path) -> None:
    settings = {"n_steps": 16, "batch_size": 16, "pool": "inline", "eval_episodes": 0}
    named = {"run_name": "mine", "runs_dir": str(tmp_path)}
    with PPO("MlpPolicy", "tasks:Count", **settings, **named) as model:
        for _ in range(3):
            model.learn(16)
        model.learn(16, reset_num_timesteps=False)
        assert model.num_timesteps == 32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-2", "mine-3"]


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
        ({"policy_kwargs": {"activation_fn": "relu"}}, "activation_fn is 'relu'; .*nn.ReLU"),
        ({"policy_kwargs": {"activation_fn": torch.nn.GELU}}, "Stoker knows torch.nn.Tanh"),
        ({"policy_kwargs": {"net_arch": {"pi": [8]}}}, "the layers of both"),
        ({"policy_kwargs": {"net_arch": {"pi": [8], "vf": []}}}, "has \\[\\] for vf"),
        ({"policy_kwargs": {"net_arch": {"pi": 8, "vf": 8}}}, "has 8 for pi; it must be a list"),
        ({"policy_kwargs": {"net_arch": [8]}, "network_arch": [4]}, "network_arch is given twice"),
        ({"policy_kwargs": {"use_expln": True}}, "has use_expln; Stoker knows activation_fn"),
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


def test_actor_and_critic_can_have_other_layers_each() -> None:
    kwargs = {"net_arch": {"pi": [8, 4], "vf": [16]}, "activation_fn": torch.nn.ReLU}
    sizes = {name: value for name, value in _TINY.items() if name != "network_arch"}
    with PPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, **sizes) as model:
        network = model.config.network
        assert (network.network_arch, network.critic_arch) == ((8, 4), (16,))
        assert network.activation == "relu"
        shapes = {name: tuple(value.shape) for name, value in model.policy.state_dict().items()}
        assert shapes["actor.trunk.2.weight"] == (4, 8)
        assert shapes["critic.trunk.0.weight"] == (16, 4)
        assert shapes["judge.weight"] == (1, 16)
        assert "critic.trunk.2.weight" not in shapes
        before = model.policy.state_dict()["critic.trunk.0.weight"].clone()
        model.learn(64)
        assert not torch.equal(before, model.policy.state_dict()["critic.trunk.0.weight"])


def test_the_train_room_is_a_function_too(tmp_path: Path) -> None:
    settings = {"env": tasks.Count.__name__, "timesteps": 64, **_TINY, "runs_dir": str(tmp_path)}
    outcome = stoker.train(stoker.resolve(settings | {"env": "tasks:Count", "run_name": "count"}))
    assert outcome.state == "finished"
    assert outcome.reward == 5.0
    assert outcome.path == tmp_path / "count"


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"),
        lambda: gymnasium.make_vec(
            "CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"
        ),
        lambda: gymnasium.make("CartPole-v1"),
    ],
    ids=["sync", "native", "object"],
)
def test_what_gymnasium_made_is_evaluated_on_copies(make: Any) -> None:
    with PPO("MlpPolicy", make(), **_TINY, eval_episodes=2).learn(64) as model:
        assert model.outcome is not None
        assert model.outcome.evaluation is not None
        assert len(model.outcome.evaluation.returns) == 2


class Halved(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that cannot be made again from its spec."""

    def observation(self, observation: Any) -> Any:
        return observation / 2


def test_an_object_that_cannot_be_made_again_is_trained_and_not_evaluated() -> None:
    with PPO("MlpPolicy", Halved(gymnasium.make("CartPole-v1")), **_TINY).learn(64) as model:
        assert model.outcome is not None
        assert model.outcome.state == "finished"
        assert model.outcome.evaluation is None


class Unbounded(tasks.Count):
    """Continuous actions without bounds."""

    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_unbounded_actions_survive_a_checkpoint(tmp_path: Path) -> None:
    with PPO("MlpPolicy", Unbounded, **_TINY, eval_episodes=0).learn(32) as model:
        model.save(tmp_path / "model")
        spec = model.spec
    assert PPO.load(tmp_path / "model", device="cpu").spec == spec
    with PPO.load(tmp_path / "model", env=Unbounded, device="cpu") as loaded:
        loaded.learn(32)


def test_how_the_environment_is_made_is_kept_in_the_run(tmp_path: Path) -> None:
    named = {**_TINY, "runs_dir": str(tmp_path), "eval_episodes": 1}
    kept = {"run_name": "kept", "env_kwargs": {"length": 7}}
    PPO("MlpPolicy", tasks.Count, **named, **kept).learn(32).close()
    assert RunFolder.open(tmp_path / "kept").read_config()["env"] == "tasks:Count"
    outcome = resume(tmp_path / "kept", timesteps=64)
    assert outcome.reward == 7.0


def test_a_run_whose_environment_has_no_name_is_not_resumed_with_another(tmp_path: Path) -> None:
    named = {**_TINY, "runs_dir": str(tmp_path), "eval_episodes": 0}
    short = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 5)
    PPO("MlpPolicy", short, **named, run_name="short").learn(32).close()
    with pytest.raises(ConfigError, match="given in Python as <TimeLimit>"):
        resume(tmp_path / "short", timesteps=64)


def test_a_model_can_go_on_with_another_number_of_environments(tmp_path: Path) -> None:
    with PPO("MlpPolicy", "CartPole-v1", **_TINY, n_envs=4, eval_episodes=0).learn(256) as model:
        model.save(tmp_path / "wide")
    with pytest.warns(UserWarning, match="counts as 1, not 4"):
        narrow = PPO.load(tmp_path / "wide", env=gymnasium.make("CartPole-v1"), device="cpu")
    for name, value in narrow.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[name])
    narrow.learn(32).close()


def test_saving_never_replaces_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("ten years of work")
    with (
        PPO("MlpPolicy", tasks.Count, **_TINY) as model,
        pytest.raises(CheckpointError, match="not a checkpoint"),
    ):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text() == "ten years of work"


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_weights_that_would_be_trained_otherwise_than_they_look_are_refused(
    kind: type[Agent],
) -> None:
    """Frozen ones, and others that were put in the place of those that are trained."""
    with kind("MlpPolicy", "CartPole-v1", device="cpu", pool="inline", eval_episodes=0) as model:
        first = next(module for module in model.policy.modules() if isinstance(module, nn.Linear))
        first.weight.requires_grad_(False)
        with pytest.raises(ConfigError, match=r"0\.weight shall not change \(requires_grad is Fal"):
            model.learn(256)
        first.weight.requires_grad_(True)
        model.learn(256)
        kept = first.bias
        first.bias = nn.Parameter(torch.ones_like(kept))
        with pytest.raises(ConfigError, match=r"0\.bias are not the parameters that are trained"):
            model.learn(256)
        first.bias = kept
        first.bias.data = torch.ones_like(kept)  # which is taken in
        model.learn(256)


@pytest.mark.parametrize("steps", [0, -5, "many"])
def test_steps_that_cannot_be_trained_for_are_refused(steps: Any) -> None:
    with PPO("MlpPolicy", tasks.Count, **_TINY) as model, pytest.raises((ConfigError, ValueError)):
        model.learn(steps)


def test_a_closed_model_predicts_and_does_not_learn() -> None:
    model = PPO("MlpPolicy", tasks.Count, **_TINY)
    model.close()
    assert model.predict(np.zeros(1, np.float32))[0] in (0, 1)
    with pytest.raises(ConfigError, match="it was closed"):
        model.learn(32)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([True] * 8, "needs 6 entries for each of 1 observations"),
        ([[True, True], [True]], "The action mask cannot be read"),
        ([False] * 6, "allows no action"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: Any, says: str) -> None:
    with (
        PPO("MlpPolicy", "tasks:Masked", n_steps=16, batch_size=16, pool="inline") as model,
        pytest.raises(ConfigError, match=says),
    ):
        model.predict(np.zeros(1, np.float32), action_mask=mask)


def test_a_masked_environment_wants_a_mask_to_predict() -> None:
    with (
        PPO("MlpPolicy", tasks.Masked, **_TINY) as model,
        pytest.raises(ConfigError, match="action_mask"),
    ):
        model.predict(np.zeros(1, np.float32))


def test_a_vector_environment_says_how_many_there_are() -> None:
    """Also when sizes are worked out: 64 divides 4 x 16."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4)
    with PPO("MlpPolicy", envs, n_steps=16, batch_size=64, eval_episodes=0) as model:
        assert (model.config.env.n_envs, model.config.minibatch) == (4, 64)


def test_another_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo is 'dqn', and PPO is ppo.*stoker\.DQN"):
        PPO("MlpPolicy", "CartPole-v1", algo="dqn")
