"""Models of Stable-Baselines3 as runs: they judge and act as they did, and train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_models
import tasks
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from stoker import DQN, PPO
from stoker.cli.main import main
from stoker.errors import ConfigError
from stoker.pools.spaces import ActionCodec
from stoker.runs.sb3_stats import RECIPE
from stoker.train.inspect import evaluate_run
from stoker.train.start import resume

CLOSE = {"rtol": 0.0, "atol": 1e-5}
RELU, ELU = torch.nn.ReLU, torch.nn.ELU


class OwnPolicy(ActorCriticPolicy):
    """A subclass, of which nobody but its author knows what it does."""


def imported(model: Any, env: str, folder: Path, *words: str) -> Path:
    """The run that the command makes of `model`."""
    archive = sb3_models.saved(model, folder / "model.zip")
    said = [str(archive), "--env", env, "--runs-dir", str(folder), "--run-name", "moved"]
    with pytest.raises(SystemExit) as left:
        main(["import", *said, "--device", "cpu", *words])
    assert left.value.code == 0
    return folder / "moved"


def seen(space: gymnasium.Space[Any], rows: int) -> Any:
    """Observations of a space, many at once, well inside of it."""
    space.seed(3)
    drawn = [space.sample() for _ in range(rows)]
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: np.stack([one[name] for one in drawn]) for name in space}
    return np.clip(np.stack(drawn), -50, 50)


def on_device(model: Any, obs: Any) -> dict[str, torch.Tensor]:
    by_leaf = obs if isinstance(obs, dict) else {"obs": obs}
    leaves = model.spec.observation
    return {k: torch.from_numpy(v.astype(leaves[k].dtype)) for k, v in by_leaf.items()}


def judged_by_theirs(theirs: Any, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits or means, and values."""
    rows, _ = theirs.policy.obs_to_tensor(obs)
    with torch.no_grad():
        features = theirs.policy.extract_features(rows)
        actor, critic = theirs.policy.mlp_extractor(features)
        return theirs.policy.action_net(actor), theirs.policy.value_net(critic)[:, 0]


def judged_by_ours(ours: Any, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = on_device(ours, obs)
    with torch.no_grad():
        raw, value = ours.policy._raw_and_value(rows)
    return raw, value


PPO_CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "discrete": ("CartPole-v1", "CartPole-v1", {}),
    "relu, layers apart": (
        "tasks:MatchPair",
        tasks.MatchPair,
        {"policy_kwargs": {"net_arch": {"pi": [32, 16], "vf": [8]}, "activation_fn": RELU}},
    ),
    "elu": ("CartPole-v1", "CartPole-v1", {"policy_kwargs": {"activation_fn": ELU}}),
    "multi-discrete": ("tasks:MatchPair", tasks.MatchPair, {}),
    "multi-binary": ("tasks:MatchBits", tasks.MatchBits, {}),
    "discrete observations": ("sb3_models:Name", sb3_models.Name, {}),
    "dict": ("sb3_models:Both", sb3_models.Both, {"policy": "MultiInputPolicy"}),
}


def _env(given: Any) -> Any:
    return given if isinstance(given, str) else given()


@pytest.mark.parametrize("case", PPO_CASES)
def test_an_actor_critic_judges_and_acts_as_it_did(case: str, tmp_path: Path) -> None:
    name, env, given = PPO_CASES[case]
    theirs = sb3_models.trained("PPO", _env(env), **given)
    ours = PPO.load(imported(theirs, name, tmp_path), device="cpu")
    obs = seen(theirs.observation_space, 200)
    for our_numbers, their_numbers in zip(
        judged_by_ours(ours, obs), judged_by_theirs(theirs, obs), strict=True
    ):
        torch.testing.assert_close(our_numbers, their_numbers, **CLOSE)
    theirs_act, _ = theirs.predict(obs, deterministic=True)
    np.testing.assert_array_equal(ours.predict(obs, deterministic=True)[0], theirs_act)
    assert len(np.unique(theirs_act, axis=0)) > 1, "a policy that always does the same shows little"
    assert ours.num_timesteps == theirs.num_timesteps


@pytest.mark.parametrize(
    ("name", "env"), [("Pendulum-v1", "Pendulum-v1"), ("sb3_models:Reach", sb3_models.Reach)]
)
def test_continuous_actions_have_the_same_means_and_deviations(
    name: str, env: Any, tmp_path: Path
) -> None:
    kwargs = {"log_std_init": 0.7}
    theirs = sb3_models.trained("PPO", _env(env), policy_kwargs=kwargs, use_sde=False)
    ours = PPO.load(imported(theirs, name, tmp_path), device="cpu")
    obs = seen(theirs.observation_space, 200)
    raw, value = judged_by_ours(ours, obs)
    mean, their_value = judged_by_theirs(theirs, obs)
    codec = ActionCodec(ours.spec.action)
    in_env = torch.from_numpy(codec._centre + codec._half * raw.double().numpy())
    torch.testing.assert_close(in_env.float(), mean, **CLOSE)
    torch.testing.assert_close(value, their_value, **CLOSE)
    deviation = torch.from_numpy(codec._half).float() * ours.policy.head.log_std.exp()
    torch.testing.assert_close(deviation, theirs.policy.log_std.exp(), **CLOSE)
    act, _ = ours.predict(obs, deterministic=True)
    their_act, _ = theirs.predict(obs, deterministic=True)
    np.testing.assert_allclose(act, their_act, **CLOSE)


def test_actions_past_the_bounds_are_clipped_as_there(tmp_path: Path) -> None:
    theirs = sb3_models.trained("PPO", "Pendulum-v1", steps=64)
    with torch.no_grad():
        theirs.policy.action_net.weight *= 300
    ours = PPO.load(imported(theirs, "Pendulum-v1", tmp_path), device="cpu")
    obs = seen(theirs.observation_space, 200)
    their_act, _ = theirs.predict(obs, deterministic=True)
    assert {-2.0, 2.0} <= set(their_act.ravel().tolist())
    np.testing.assert_allclose(ours.predict(obs, deterministic=True)[0], their_act, **CLOSE)


@pytest.mark.parametrize("kwargs", [{}, {"net_arch": [32], "activation_fn": torch.nn.Tanh}])
def test_a_q_network_judges_and_acts_as_it_did(kwargs: dict[str, Any], tmp_path: Path) -> None:
    theirs = sb3_models.trained("DQN", "CartPole-v1", policy_kwargs=kwargs)
    with torch.no_grad():
        theirs.policy.q_net_target.q_net[0].weight += 1.0
    run = imported(theirs, "CartPole-v1", tmp_path)
    obs = seen(theirs.observation_space, 200)
    with DQN.load(run, env="CartPole-v1", device="cpu") as ours, torch.no_grad():
        rows = torch.from_numpy(obs)
        torch.testing.assert_close(ours.policy({"obs": rows}), theirs.q_net(rows), **CLOSE)
        their_act, _ = theirs.predict(obs, deterministic=True)
        np.testing.assert_array_equal(ours.predict(obs, deterministic=True)[0], their_act)
        target = ours._training_parts().learner.state()["target.encoder.trunk.0.weight"]
        assert torch.equal(target, theirs.q_net_target.q_net[0].weight)


def test_settings_are_those_it_was_trained_with(tmp_path: Path) -> None:
    given = {"gamma": 0.9, "gae_lambda": 0.8, "clip_range": 0.3, "ent_coef": 0.01, "vf_coef": 0.7}
    theirs = sb3_models.trained("PPO", "CartPole-v1", target_kl=0.5, max_grad_norm=0.4, **given)
    config = PPO.load(imported(theirs, "CartPole-v1", tmp_path), device="cpu").config
    flat = config.flat()
    expected = {**given, "target_kl": 0.5, "max_grad_norm": 0.4, **sb3_models.PPO_SIZES}
    assert {name: flat[name] for name in expected} == expected
    assert (config.run.seed, config.run.timesteps, config.env.n_envs) == (1, 192, 1)
    assert config.ppo.lr_schedule == "constant"
    assert not config.ppo.normalize_obs
    assert not config.ppo.normalize_reward


def test_settings_of_a_q_learner_are_those_it_was_trained_with(tmp_path: Path) -> None:
    given = {"exploration_final_eps": 0.2, "exploration_fraction": 0.4, "gamma": 0.9, "tau": 0.5}
    theirs = sb3_models.trained("DQN", "CartPole-v1", target_update_interval=40, **given)
    run = imported(theirs, "CartPole-v1", tmp_path)
    settings = DQN.load(run, device="cpu").config.dqn
    assert (settings.epsilon_end, settings.epsilon_fraction) == (0.2, 0.4)
    assert (settings.gamma, settings.tau, settings.buffer_size) == (0.9, 0.5, 500)
    assert (settings.double, settings.dueling, settings.n_step_return) == (False, False, 1)
    assert settings.target_every == 20  # updates, at one for two steps


@pytest.mark.parametrize(("algo", "kind"), [("PPO", PPO), ("DQN", DQN)])
def test_training_goes_on_from_the_command_and_from_python(
    algo: str, kind: Any, tmp_path: Path
) -> None:
    theirs = sb3_models.trained(algo, "CartPole-v1")
    run = imported(theirs, "CartPole-v1", tmp_path, "--eval-episodes", "1")
    before = kind.load(run, device="cpu").policy.state_dict()
    with kind.load(run, env="CartPole-v1", device="cpu") as model:
        model.learn(256, reset_num_timesteps=False)
        assert model.num_timesteps >= 192 + 256
    assert evaluate_run(run, episodes=2, device="cpu").report.mean_reward > 0
    outcome = resume(run, timesteps=448)
    assert (outcome.state, outcome.env_steps >= 448) == ("finished", True)
    after = kind.load(run, device="cpu").policy.state_dict()
    assert not torch.equal(before["judge.weight"], after["judge.weight"])


def test_flags_go_over_what_the_model_was_trained_with(tmp_path: Path) -> None:
    theirs = sb3_models.trained("PPO", "CartPole-v1")
    words = ("--n_envs", "4", "--batch-size", "auto", "--lr", "1e-5", "--timesteps", "5k")
    config = PPO.load(imported(theirs, "CartPole-v1", tmp_path, *words), device="cpu").config
    assert (config.env.n_envs, config.minibatch) == (4, 32)
    assert (config.ppo.learning_rate, config.run.timesteps) == (1e-5, 5000)


def test_what_is_kept_as_code_is_named_and_left_to_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = sb3_models.trained("PPO", "CartPole-v1", 64, learning_rate=lambda left: 1e-3 * left)
    run = imported(theirs, "CartPole-v1", tmp_path)
    assert "learning_rate: not there as plain numbers (code is not run)" in capsys.readouterr().out
    assert PPO.load(run, device="cpu").config.ppo.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("rows", "minibatch", "becomes"), [(100, 64, 50), (61, 60, 61), (64, 48, 64), (64, 32, 32)]
)
def test_a_minibatch_that_does_not_divide_becomes_the_nearest_that_does_and_that_is_said(
    rows: int, minibatch: int, becomes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"n_steps": rows, "batch_size": minibatch}
    theirs = sb3_models.trained("PPO", "CartPole-v1", rows, **sizes)
    run = imported(theirs, "CartPole-v1", tmp_path)
    assert PPO.load(run, device="cpu").config.minibatch == becomes
    said = f"batch_size is {becomes}, and was {minibatch} there" in capsys.readouterr().out
    assert said == (becomes != minibatch)


def test_another_optimiser_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = {"optimizer_class": torch.optim.SGD}
    imported(
        sb3_models.trained("PPO", "CartPole-v1", 64, policy_kwargs=kwargs), "CartPole-v1", tmp_path
    )
    assert "The optimiser is Adam, and was 'SGD' there" in capsys.readouterr().out


def test_a_target_is_moved_after_as_many_steps_as_there(tmp_path: Path) -> None:
    theirs = sb3_models.trained("DQN", "CartPole-v1", target_update_interval=1000)
    run = imported(theirs, "CartPole-v1", tmp_path, "--update-ratio", "0.25")
    assert DQN.load(run, device="cpu").config.dqn.target_every == 250


@pytest.mark.parametrize("words", [["--dueling"], ["--exploration", "noisy"]])
def test_no_flag_gives_a_q_network_another_shape(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = sb3_models.saved(sb3_models.trained("DQN", "CartPole-v1"), tmp_path / "pole.zip")
    said = _refused(capsys, str(archive), "--env", "CartPole-v1", *words)
    assert "and pole.zip has" in said
    assert "leave it out" in said


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"n_steps": 10**18}, "it must be at most 2,147,483,648"),
        ({"n_steps": -4}, "n_steps is -4; it must be 1 or more"),
        ({"gamma": 7}, "gamma is 7; it must lie between 0 and 1"),
        ({"policy_kwargs": 3}, "Which activation hostile.zip has is not known: it names none"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    facts: dict[str, Any],
    says: str,
    cart_pole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def change(entries: dict[str, bytes]) -> None:
        sb3_models.with_facts(entries, facts)

    hostile = sb3_models.rewritten(cart_pole, tmp_path / "hostile.zip", change)
    assert says in _refused(capsys, str(hostile), "--env", "CartPole-v1")


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["import", *words, "--device", "cpu"])
    assert left.value.code in (1, 2)
    return " ".join(capsys.readouterr().err.split())


def test_an_activation_that_is_not_known_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = sb3_models.trained("PPO", "CartPole-v1", policy=OwnPolicy)
    sb3_models.saved(theirs, tmp_path / "own.zip")
    said = _refused(capsys, "own.zip", "--env", "CartPole-v1")
    assert "own.zip has is not known: it has a policy class of its own, in" in said
    assert "--activation (tanh, relu, elu, silu)" in said
    run = imported(theirs, "CartPole-v1", tmp_path, "--activation", "tanh")
    obs = seen(theirs.observation_space, 50)
    ours, values = judged_by_ours(PPO.load(run, device="cpu"), obs)
    logits, their_values = judged_by_theirs(theirs, obs)
    torch.testing.assert_close(ours, logits, **CLOSE)
    torch.testing.assert_close(values, their_values, **CLOSE)


def test_layers_before_both_networks_are_in_both(tmp_path: Path) -> None:
    """As Stable-Baselines3 had them before 1.8: what is saved now is renamed to what it was."""
    theirs = sb3_models.trained("PPO", "CartPole-v1", policy_kwargs={"net_arch": [16, 8]})
    archive = sb3_models.saved(theirs, tmp_path / "new.zip")

    def shared(weights: dict[str, Any]) -> dict[str, Any]:
        old = "mlp_extractor.policy_net"
        kept = {k: v for k, v in weights.items() if not k.startswith("mlp_extractor.value_net")}
        return {k.replace(old, "mlp_extractor.shared_net"): v for k, v in kept.items()}

    def change(entries: dict[str, bytes]) -> None:
        sb3_models.with_weights(entries, shared)

    sb3_models.rewritten(archive, tmp_path / "old.zip", change)
    words = ["--env", "CartPole-v1", "--runs-dir", str(tmp_path), "--run-name", "old"]
    with pytest.raises(SystemExit) as left:
        main(["import", str(tmp_path / "old.zip"), *words, "--device", "cpu"])
    assert left.value.code == 0
    ours = PPO.load(tmp_path / "old", device="cpu")
    assert ours.config.network.shared_trunk
    obs = seen(theirs.observation_space, 50)
    rows, _ = theirs.policy.obs_to_tensor(obs)
    with torch.no_grad():
        hidden = theirs.policy.mlp_extractor.policy_net(rows)
        expected = theirs.policy.action_net(hidden), theirs.policy.value_net(hidden)[:, 0]
    for our_numbers, their_numbers in zip(judged_by_ours(ours, obs), expected, strict=True):
        torch.testing.assert_close(our_numbers, their_numbers, **CLOSE)


def _normalised(env: Any, folder: Path, **given: Any) -> tuple[Any, VecNormalize]:
    envs = VecNormalize(DummyVecEnv([env]), **given)
    model = sb3_models.trained("PPO", envs)
    envs.save(str(folder / "vecnormalize.pkl"))
    return model, envs


def test_statistics_of_vecnormalize_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs, envs = _normalised(lambda: gymnasium.make("Pendulum-v1"), tmp_path)
    exec(RECIPE, {})
    run = imported(theirs, "Pendulum-v1", tmp_path, "--normalize", "stats.npz")
    obs = seen(theirs.observation_space, 200)
    scaled = envs.normalize_obs(obs)
    with PPO.load(run, env="Pendulum-v1", device="cpu") as ours:
        assert ours.config.ppo.normalize_obs
        assert ours.config.ppo.normalize_reward
        raw, value = judged_by_ours(ours, obs)
        mean, their_value = judged_by_theirs(theirs, scaled)
        torch.testing.assert_close(2 * raw, mean, **CLOSE)
        torch.testing.assert_close(value, their_value, **CLOSE)
        scaler = ours._training_parts().scaler
        assert scaler is not None
        assert float(scaler.moments.variance) == pytest.approx(float(envs.ret_rms.var))
        assert float(scaler.moments.count) == pytest.approx(envs.ret_rms.count)
        reward = torch.tensor([[-3.0]])
        shrunk = (reward * scaler.moments.scale).item()
        assert shrunk == pytest.approx(float(envs.normalize_reward(np.array([-3.0]))[0]), abs=1e-5)
        ours.learn(64)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clip_obs": 5.0}, "clip_obs is 5, and Stoker's own is 10"),
        ({"mean": np.zeros(4)}, "are of 4 numbers, and an observation of Pendulum-v1 has 3"),
        ({"var": np.array([1.0, np.nan, 1.0])}, "var is not finite"),
        ({"count": None}, "it has no count"),
        ({"mean": np.array([{}], object)}, "no archive of plain arrays"),
    ],
)
def test_statistics_that_cannot_be_used(
    change: dict[str, Any],
    says: str,
    pendulum: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {"norm_obs": True, "norm_reward": False, "ret_var": 1.0, "ret_count": 1.0}
    arrays = {"mean": np.zeros(3), "var": np.ones(3), "count": 10.0, **flags, **change}
    np.savez(tmp_path / "stats.npz", **{k: v for k, v in arrays.items() if v is not None})
    words = (str(pendulum), "--env", "Pendulum-v1", "--runs-dir", str(tmp_path))
    assert says in _refused(capsys, *words, "--normalize", str(tmp_path / "stats.npz"))
    assert [path.name for path in tmp_path.iterdir()] == ["stats.npz"]


def test_the_pickle_of_vecnormalize_is_not_read(
    pendulum: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _normalised(lambda: gymnasium.make("Pendulum-v1"), tmp_path)
    words = (str(pendulum), "--env", "Pendulum-v1", "--normalize")
    said = _refused(capsys, *words, str(tmp_path / "vecnormalize.pkl"))
    assert "Nothing is unpickled here; write it with Python" in said
    assert 'np.savez("stats.npz"' in said


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return sb3_models.saved(sb3_models.trained("PPO", "Pendulum-v1", 64), folder / "pendulum.zip")


@pytest.fixture(scope="module")
def cart_pole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return sb3_models.saved(sb3_models.trained("PPO", "CartPole-v1", 64), folder / "pole.zip")


Model = Callable[[], Any]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sb3_models.trained("A2C", "CartPole-v1", 10), "it is of A2C, or of another"),
        (lambda: sb3_models.trained("SAC", "Pendulum-v1", 10), "as SAC, TD3 or DDPG has"),
        (
            lambda: sb3_models.trained(
                "PPO", sb3_models.Picture(), 64, policy="CnnPolicy", n_epochs=1
            ),
            "as a CnnPolicy, or a features extractor with layers of its own, has",
        ),
        (
            lambda: sb3_models.trained("PPO", "Pendulum-v1", 64, use_sde=True),
            "explores by state-dependent noise",
        ),
        (
            lambda: sb3_models.trained("PPO", "CartPole-v1", 64, policy_kwargs={"net_arch": []}),
            "without a hidden layer",
        ),
        (
            lambda: sb3_models.trained(
                "PPO", "CartPole-v1", 64, policy_kwargs={"activation_fn": torch.nn.GELU}
            ),
            "has the activation 'GELU'; Stoker has tanh, relu, elu, silu",
        ),
    ],
    ids=["A2C", "SAC", "CnnPolicy", "use_sde", "no layer", "GELU"],
)
def test_other_models_are_refused_by_name(
    make: Model, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = sb3_models.saved(make(), tmp_path / "other.zip")
    words = (str(archive), "--env", "CartPole-v1", "--runs-dir", str(tmp_path))
    said = _refused(capsys, *words)
    assert says in said
    assert "other.zip" in said
    assert [path.name for path in tmp_path.iterdir()] == ["other.zip"]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("Acrobot-v1", "the model takes 4 numbers, and the environment shows vector of (6,)"),
        ("sb3_models:Fewer", "puts out 2 numbers, and the environment's actions take 3"),
        ("sb3_models:Continuous", "the model's actions are Discrete, and the environment's Box"),
        ("sb3_models:Four", "the model saw a Box space, and the environment shows discrete of 4"),
        ("sb3_models:FromOne", "the environment's actions begin at (1,)"),
        ("tasks:Quadrant", "the environment shows images"),
    ],
)
def test_an_environment_with_other_spaces_is_refused(
    env: str, says: str, cart_pole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _refused(capsys, str(cart_pole), "--env", env, "--runs-dir", str(tmp_path / "runs"))
    assert f"pole.zip is not a model for {env}: " in said
    assert says in said
    assert not (tmp_path / "runs").exists()


def test_bounds_of_actions_are_compared(
    pendulum: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--env", "sb3_models:Wider", "--runs-dir", str(tmp_path))
    assert "action space has low [-2.], and the environment's (-3.0,)" in _refused(
        capsys, str(pendulum), *words
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--network-arch", "32"], "network_arch is [32], and pole.zip has [64, 64]"),
        (["--activation", "relu"], "activation is relu, and pole.zip has tanh"),
        (["--normalize-obs"], "normalize_obs is True, and pole.zip has False"),
        (["--batch-size", "7"], "batch_size 7 does not divide"),
    ],
)
def test_flags_that_contradict_the_weights(
    words: list[str], says: str, cart_pole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in _refused(capsys, str(cart_pole), "--env", "CartPole-v1", *words)


def test_the_file_and_the_environment_are_asked_for(
    cart_pole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Name the model's file first" in _refused(capsys, "--env", "CartPole-v1")
    assert "Say what the model was trained on" in _refused(capsys, str(cart_pole))
    assert "No such file" in _refused(capsys, "gone.zip", "--env", "CartPole-v1")
    assert "is a folder" in _refused(capsys, str(tmp_path), "--env", "CartPole-v1")


def test_the_name_of_a_run_is_taken_once(
    cart_pole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(cart_pole), "--env", "CartPole-v1", "--runs-dir", str(tmp_path), "--run-name", "a"]
    with pytest.raises(SystemExit) as left:
        main(["import", *words, "--device", "cpu", "--json"])
    assert left.value.code == 0
    capsys.readouterr()
    assert "exists already" in _refused(capsys, *words)
    with pytest.raises(ConfigError, match=r"use PPO.load, not DQN.load"):
        DQN.load(tmp_path / "a")
