"""Training tensor environments: the same bits as on the host, resumed, evaluated, refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensor_envs
import torch
from tensor_envs import Dice, HostLadder, Ladder

from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.errors import BadValueError, ConfigError
from stoker.runs import checkpoint
from stoker.train import loop, session
from stoker.train.agent import PPO
from stoker.train.build import build
from stoker.train.parts import Parts
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.start import Audience, resume, train
from stoker.types import TensorStep

SIZES: dict[str, Any] = {"n_envs": 6, "n_steps": 16, "batch_size": 24, "n_epochs": 2}
SIZES |= {"network_arch": (16, 16), "device": "cpu", "eval_episodes": 0}


def trained(make_env: Callable[..., Any], iterations: int, **settings: Any) -> Parts:
    steps = iterations * SIZES["n_envs"] * SIZES["n_steps"]
    config = resolve({"env": "test", **SIZES, "timesteps": steps, **settings}, on_gpu=False)
    parts = build(config, EnvFactory(make_env))
    loop.run(Session(parts, None), lambda progress: None, StopRequest(None))
    return parts


@pytest.mark.parametrize("normalize", [False, True])
def test_it_learns_bit_for_bit_what_the_same_environment_on_the_host_teaches(
    normalize: bool,
) -> None:
    settings = {"normalize_obs": normalize, "normalize_reward": normalize, "collect": "step"}
    # Of what is cut off, the last values are computed in batches of other sizes, in other bits.
    on_device = trained(lambda: Ladder(longest=10_000), 6, **settings)
    on_host = trained(lambda: HostLadder(longest=10_000), 6, pool="inline", **settings)
    assert on_device.config.env.pool == "tensor"
    ours, theirs = on_device.policy.state_dict(), on_host.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ours_said, theirs_said = (parts.collector.metrics() for parts in (on_device, on_host))
    assert ours_said.keys() == theirs_said.keys()
    for name, value in theirs_said.items():
        if name != "env/rung":  # of which the session has fetched some
            assert ours_said[name] == pytest.approx(value, rel=1e-12), name


def test_the_rollout_is_the_hosts_in_every_field() -> None:
    on_device = trained(Ladder, 1, collect="step")
    on_host = trained(HostLadder, 1, pool="inline", collect="step")
    # What they learned differs in its last bits, by those of the final values.
    on_device.policy.load_state_dict(on_host.policy.state_dict())
    for _ in range(3):
        ours, theirs = (
            parts.collector.collect().judged_by(parts.policy, parts.collector.version)
            for parts in (on_device, on_host)
        )
        assert theirs.truncated.any()
        assert theirs.terminated.any()
        for name, field in theirs._asdict().items():
            mine = getattr(ours, name)
            if name == "final_value":
                torch.testing.assert_close(mine, field, rtol=1e-5, atol=1e-6)
                assert torch.equal(mine != 0, theirs.truncated)
            elif name == "policy_version":
                assert not mine.any(), "on the device nothing is ever late"
            elif isinstance(field, torch.Tensor):
                assert torch.equal(mine, field), name
            elif isinstance(field, dict):
                assert all(torch.equal(mine[leaf], value) for leaf, value in field.items())


def test_episodes_are_averaged_over_the_last_hundred() -> None:
    from stoker.collect.episodes import EpisodeTracker
    from stoker.collect.on_device import DeviceEpisodes, count_episodes
    from stoker.types import PLAIN, StepBatch

    rng = np.random.default_rng(0)
    for n_envs, likely in ((3, 0.2), (250, 0.9)):
        tensors, arrays = DeviceEpisodes(n_envs, torch.device("cpu")), EpisodeTracker(n_envs)
        assert tensors.metrics() == arrays.metrics() == {}
        rollout: list[tuple[torch.Tensor, torch.Tensor]] = []
        steps = 1
        for _ in range(40):
            reward = rng.integers(0, 9, n_envs).astype(np.float32)
            over, cut = rng.random(n_envs) < likely, rng.random(n_envs) < 0.5
            flags = (over & ~cut, over & cut)
            shown = {PLAIN: reward[:, None]}
            valid = np.ones(n_envs, bool)
            ids = np.arange(n_envs)
            arrays.take(StepBatch(ids, shown, reward, *flags, shown, None, valid, {}))
            rollout.append((torch.from_numpy(reward), torch.from_numpy(over)))
            if len(rollout) == steps:
                taken = (torch.stack(rows) for rows in zip(*rollout, strict=True))
                count_episodes(tensors.held, *taken)
                assert tensors.metrics() == pytest.approx(arrays.metrics())
                rollout, steps = [], steps % 5 + 1


def test_the_metrics_of_environments_are_averaged() -> None:
    class Odd(Ladder):
        def step(self, *given: Any) -> TensorStep:
            step = super().step(*given)
            rung = step.metrics["rung"]
            return step._replace(metrics={"rung": torch.where(rung > 0, rung, torch.nan)})

    parts = trained(Odd, 1, log_every=10)
    storage = parts.collector.collect()
    parts.collector.metrics()
    storage = parts.collector.collect()
    reward = storage.judged_by(parts.policy, 1).reward
    expected = reward[reward > 0].mean().item()
    assert parts.collector.metrics()["env/rung"] == pytest.approx(expected)


@pytest.mark.parametrize("space", ["Box", "MultiDiscrete", "MultiBinary"])
def test_every_kind_of_action(space: str) -> None:
    from gymnasium import spaces

    made = {
        "Box": spaces.Box(-2, 4, (2,), np.float32),
        "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
        "MultiBinary": spaces.MultiBinary(2),
    }[space]
    parts = trained(lambda: Dice(made), 2)
    said = parts.pool.obs["said"]  # type: ignore[attr-defined]
    low, high = {"Box": (-2, 4), "MultiDiscrete": (0, 3), "MultiBinary": (0, 1)}[space]
    assert low <= said.min() <= said.max() <= high


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    given = {**SIZES, "env": "tensor_envs:Dice", "runs_dir": str(tmp_path), "eval_episodes": 3}
    given["lr_schedule"] = "constant"  # which otherwise follows from where the run is to end
    half, whole = ({**given, "timesteps": n * 96, "checkpoint_every": 96} for n in (4, 8))
    train(resolve({**whole, "run_name": "whole"}, on_gpu=False))
    train(resolve({**half, "run_name": "half"}, on_gpu=False))
    resume(tmp_path / "half", timesteps=8 * 96)
    ours, theirs = (PPO.load(tmp_path / name, device="cpu") for name in ("half", "whole"))
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(ours.policy.state_dict()[name], value), name


def test_an_object_of_one_will_do_in_python() -> None:
    with pytest.raises(ConfigError, match="env is already made"):
        PPO("MlpPolicy", Ladder(), env_kwargs={"longest": 3}, **SIZES)
    model = PPO("MlpPolicy", Ladder, env_kwargs={"longest": 9}, **SIZES)
    assert model.config.env.env == "tensor_envs:Ladder"
    model = PPO("MlpPolicy", Ladder(), **SIZES | {"n_envs": 24}, learning_rate=3e-3)
    model.learn(8_000)
    action, _ = model.predict(np.zeros(3, np.float32))
    assert action == 1, "up"


def test_cart_pole_is_learned() -> None:
    model = PPO(
        "MlpPolicy",
        "tensor/CartPole-v1",
        n_envs=32,
        n_steps=64,
        batch_size=256,
        n_epochs=10,
        network_arch=(64, 64),
        learning_rate=1e-3,
        device="cpu",
        seed=0,
    )
    model.learn(98_304)
    from stoker.train.evaluate import evaluate

    report = evaluate(
        model.policy,
        EnvFactory("tensor/CartPole-v1"),
        model.spec,
        torch.device("cpu"),
        episodes=20,
        seed=0,
        max_steps=1000,
        pool="tensor",
    )
    assert len(report.returns) == 20
    assert report.mean_reward >= 475


def test_a_snapshot_stays_as_it_was_taken() -> None:
    parts = trained(Ladder, 1)
    held = parts.collected_state()
    before = {name: value.clone() for name, value in held.items()}
    parts.collector.collect()
    assert all(torch.equal(held[name], value) for name, value in before.items())


def test_a_value_that_is_not_finite_ends_the_run_in_words() -> None:
    class Bursts(Ladder):
        """Long after it was checked."""

        def step(self, *given: Any) -> TensorStep:
            step = super().step(*given)
            late = given[0]["age"] >= 9
            return step._replace(reward=torch.where(late, torch.inf, step.reward))

    with pytest.raises(BadValueError, match=r"rewards or observations of .*Bursts were NaN"):
        trained(Bursts, 4)


@pytest.mark.parametrize("there", [HostLadder, HostLadder(), "tensor_envs:HostLadder"])
def test_an_agent_moves_from_the_device_to_the_host_and_back(tmp_path: Path, there: Any) -> None:
    here = PPO("MlpPolicy", Ladder, **SIZES)
    here.learn(200)
    here.save(tmp_path / "a")
    moved = PPO.load(tmp_path / "a", env=there, device="cpu")
    assert moved.config.env.pool in ("inline", "process")
    moved.learn(100, reset_num_timesteps=False)
    moved.save(tmp_path / "b")
    back = PPO.load(tmp_path / "b", env=Ladder(), device="cpu")
    assert back.config.env.pool == "tensor"
    back.learn(100, reset_num_timesteps=False)
    for model in (here, moved, back):
        model.close()


# What is refused.


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pool": "process"}, "pool is process, and Ladder is a tensor environment"),
        ({"collect": "overlap"}, "there is nothing to overlap with"),
    ],
)
def test_what_tensors_cannot_do(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trained(Ladder, 1, **settings)


def test_an_ordinary_environment_is_no_tensor_one() -> None:
    with pytest.raises(ConfigError, match="pool is tensor, and HostLadder is an ordinary"):
        trained(HostLadder, 1, pool="tensor")
    with pytest.raises(ConfigError, match="Ladder is a tensor environment, which steps many"):
        EnvFactory(Ladder)()


def test_one_that_gives_wrong_results_is_not_trained_on() -> None:
    class Wrong(Ladder):
        def step(self, *given: Any) -> TensorStep:
            return super().step(*given)._replace(reward=torch.full((len(given[1]),), torch.nan))

    with pytest.raises(ConfigError, match="Wrong: reward of step holds NaN or infinity"):
        trained(Wrong, 1)


def test_one_that_cannot_be_captured_is_trained_on_with_a_warning() -> None:
    class Slow(Ladder):
        def step(self, *given: Any) -> TensorStep:
            given[0]["rung"].sum().item()
            return super().step(*given)

    with pytest.warns(UserWarning, match="Slow cannot be captured: test_tensor_training.py"):
        trained(Slow, 1)


assert tensor_envs  # by its name, in the run that is resumed


class Later(Ladder):
    """Shows NaN in its tenth step, which is long after it was checked."""

    def observe(self, state: Any) -> torch.Tensor:
        seen = super().observe(state)
        return torch.where(seen[:, 2:] >= 10, torch.nan, seen)


@pytest.mark.parametrize("kernels", ["torch", "fused"])
@pytest.mark.parametrize("log_every", [1, 3])
def test_what_is_not_finite_never_reaches_a_checkpoint(
    kernels: str, log_every: int, tmp_path: Path
) -> None:
    """And who mends the environment goes on from the last one."""
    given = {**SIZES, "env": "test_tensor_training:Later", "runs_dir": str(tmp_path)}
    given |= {"kernels": kernels, "log_every": log_every, "run_name": "run"}
    given |= {"n_steps": 4, "n_envs": 24, "checkpoint_every": 96, "timesteps": 960}
    with pytest.raises(BadValueError, match="were NaN or infinite"):
        train(resolve(given, on_gpu=False))
    saved = checkpoint.load_newest(tmp_path / "run" / "checkpoints")[1].tensors
    assert saved
    assert all(value.isfinite().all() for value in saved.values() if value.is_floating_point())


def test_a_run_from_before_there_were_populations_goes_on() -> None:
    """Its reward statistics had no dimension for agents."""
    before, after = trained(Ladder, 2), trained(Ladder, 1)
    old = dict(before.tensors())
    for name in ("mean", "variance", "centre", "scale", "count"):
        old[f"scaler/moments.{name}"] = old[f"scaler/moments.{name}"][0]
    after.restore(old)
    for name, value in before.tensors().items():
        assert torch.equal(after.tensors()[name], value), name


class Logged(Audience):
    """Counts the iterations that were logged."""

    def __init__(self) -> None:
        self.iterations: list[int] = []

    def progresses(self, progress: Progress) -> None:
        self.iterations.append(progress.iteration)


@pytest.mark.parametrize(
    ("log_every", "logged"), [(0, [5, 10, 15, 20]), (1, list(range(1, 21))), (6, [6, 12, 18, 20])]
)
def test_logs_are_some_time_apart_but_none_is_missing_before_a_checkpoint(
    log_every: int, logged: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LOGS_APART_S", 1e6)
    given = {"env": "tensor/CartPole-v1", **SIZES, "runs_dir": str(tmp_path)}
    given |= {"timesteps": 20 * 96, "checkpoint_every": 5 * 96, "log_every": log_every}
    audience = Logged()
    train(resolve(given, on_gpu=False), audience=audience)
    assert audience.iterations == logged
