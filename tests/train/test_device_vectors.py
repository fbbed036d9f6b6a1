"""Training on vector environments that live on the device: the same bits, resumed, evaluated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from device_envs import Isaac, RslRl
from tensor_envs import HostLadder, Ladder

from stoker.config import resolve
from stoker.envs.registry import EnvFactory
from stoker.envs.tensor.cart_pole import CartPole
from stoker.errors import BadValueError, ConfigError
from stoker.train import loop
from stoker.train.agent import PPO
from stoker.train.build import build
from stoker.train.evaluate import evaluate
from stoker.train.inspect import evaluate_run
from stoker.train.parts import Parts
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.sources import EnvSource
from stoker.train.start import resume, train
from stoker.types import PLAIN

SIZES: dict[str, Any] = {"n_envs": 6, "n_steps": 16, "batch_size": 24, "n_epochs": 2}
SIZES |= {"network_arch": (16, 16), "device": "cpu", "eval_episodes": 0}
CPU = torch.device("cpu")


class Quiet(HostLadder):
    """It reports nothing of itself."""

    metric_names = ()  # type: ignore[assignment]


def built(env: EnvSource, **settings: Any) -> Parts:
    return build(resolve({"env": "test", **SIZES, **settings}, on_gpu=False), env)


def trained(env: EnvSource, iterations: int, **settings: Any) -> Parts:
    parts = built(env, timesteps=iterations * 96, **settings)
    loop.run(Session(parts, None), lambda progress: None, StopRequest(None))
    return parts


@pytest.mark.parametrize("make", [Isaac, RslRl])
@pytest.mark.parametrize("normalize", [False, True])
def test_it_learns_bit_for_bit_what_the_tensor_pool_teaches(make: Any, normalize: bool) -> None:
    settings = {"normalize_obs": normalize, "normalize_reward": normalize, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = trained(make(CartPole(20), 6), 8, **settings)
    theirs = trained(EnvFactory(lambda: CartPole(20)), 8, **settings)
    assert ours.config.env.pool == theirs.config.env.pool == "tensor"
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(ours.policy.state_dict()[name], value), name
    assert ours.collector.metrics() == theirs.collector.metrics()
    assert ours.collector.metrics()["rollout/ep_len_mean"] > 1


def test_one_that_is_a_gymnasium_environment_in_wrappers() -> None:
    """As Isaac Lab's are: what it has is found under the wrappers, which know nothing of it."""

    class Lab(Isaac, gymnasium.Env[Any, Any]):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed)

    wrapped: Any = gymnasium.wrappers.OrderEnforcing(Lab(CartPole(20), 6))
    assert not hasattr(wrapped, "num_envs")
    ours, theirs = trained(wrapped, 2), trained(EnvFactory(lambda: CartPole(20)), 2)
    assert (ours.pool.n_envs, ours.eval_factory) == (6, None)
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(ours.policy.state_dict()[name], value), name
    with pytest.raises(ConfigError, match="steps many at once"):
        EnvFactory(lambda: wrapped)()


@pytest.mark.parametrize("told", [True, False])
def test_a_truncated_episode_is_worth_what_was_seen_last(told: bool) -> None:
    parts = built(EnvFactory("device_envs:ladders", {"longest": 5, "finals": told}))
    storage = parts.collector.collect()
    rollout = storage.judged_by(parts.policy, 0)
    assert rollout.truncated.any()
    seen = rollout.obs[PLAIN]
    for t, n in rollout.truncated.nonzero().tolist():
        last = seen[t, n].clone()
        if told:
            up = 2 * int(rollout.action[t, n]) - 1
            rung, age = last[0] + up, last[2] + 1
            last = torch.stack((rung, rung * 0.5 - age, age))
        with torch.no_grad():
            value = parts.policy.value({PLAIN: last[None]})
        torch.testing.assert_close(rollout.final_value[t, n], value[0])


def test_that_an_end_was_not_seen_is_said_once_and_counted() -> None:
    model = PPO("MlpPolicy", Isaac(Ladder(longest=3), 6, finals=None), **SIZES)
    with pytest.warns(UserWarning, match="truncated episodes saw last") as said:
        model.learn(96 * 3)
    assert len(said) == 1
    assert model.outcome is not None
    assert model.outcome.metrics["faults/unseen_ends"] == 96


def test_as_many_as_there_are() -> None:
    with pytest.warns(UserWarning, match=r"counts as 4, not 6.* let what makes it take num_envs"):
        parts = built(EnvFactory("device_envs:four_poles"))
    assert (parts.config.env.n_envs, parts.config.minibatch) == (4, 16)
    assert built(EnvFactory("device_envs:ladders")).pool.n_envs == 6, "as many as are asked for"


def test_an_object_will_do_in_python(tmp_path: Path) -> None:
    envs = Isaac(Ladder(), 24)
    model = PPO("MlpPolicy", envs, **SIZES | {"n_envs": 24, "eval_episodes": 5}, learning_rate=3e-3)
    assert model.config.env.env == "<Isaac>"
    model.learn(8_000)
    assert model.outcome is not None
    assert model.outcome.evaluation is None, "there is but one of it"
    action, _ = model.predict(np.zeros(3, np.float32))
    assert action == 1, "up"
    model.save(tmp_path / "a")
    model.close()
    assert envs.closed == 1
    again = PPO.load(tmp_path / "a", env=Isaac(Ladder(), 24), device="cpu")
    again.learn(400, reset_num_timesteps=False)
    moved = PPO.load(tmp_path / "a", env=Quiet, device="cpu")
    assert moved.config.env.pool in ("inline", "process")
    moved.close()


MADE: list[Isaac] = []


def only_one(num_envs: int, device: str) -> Isaac:
    """Of many a simulator there can be one in a process."""
    assert not MADE, "only one simulator a process"
    MADE.append(Isaac(Ladder(), num_envs, device))
    return MADE[0]


def test_nothing_is_made_only_to_see_what_it_is(tmp_path: Path) -> None:
    MADE.clear()
    with PPO("MlpPolicy", only_one, **SIZES) as model:
        model.learn(96)
        model.save(tmp_path / "a")
    MADE.clear()
    with PPO.load(tmp_path / "a", env=only_one, device="cpu") as again:
        again.learn(96, reset_num_timesteps=False)
    assert len(MADE) == 1


def test_one_that_computes_in_double_precision_is_trained_on_and_evaluated() -> None:
    class Precise(Isaac):
        def _shown(self, leaves: dict[str, torch.Tensor]) -> Any:
            return {"policy": leaves["obs"].double()}

    factory = EnvFactory(lambda num_envs, device: Precise(Ladder(), num_envs, device))
    parts = trained(factory, 2)
    report = evaluate(
        parts.policy,
        factory,
        parts.pool.spec,
        CPU,
        episodes=3,
        seed=0,
        max_steps=50,
        pool="tensor",
    )
    assert len(report.returns) == 3
    assert parts.pool.obs[PLAIN].dtype == torch.float32  # type: ignore[attr-defined]


def test_a_run_that_was_stopped_goes_on_with_environments_that_begin_anew(tmp_path: Path) -> None:
    given = {**SIZES, "env": "device_envs:ladders", "env_kwargs": {"longest": 10_000}}
    given |= {"runs_dir": str(tmp_path), "run_name": "a", "normalize_reward": True}
    train(resolve({**given, "timesteps": 96 * 2}, on_gpu=False))
    outcome = resume(tmp_path / "a", timesteps=96 * 4)
    assert (outcome.state, outcome.env_steps) == ("finished", 96 * 4)
    with pytest.raises(ConfigError, match="an ordinary environment"):
        built(EnvFactory(HostLadder), pool="tensor")


def test_what_ran_before_is_not_counted_with_what_begins_anew() -> None:
    parts = trained(EnvFactory("device_envs:ladders", {"longest": 7}), 2, normalize_reward=True)
    assert parts.scaler is not None
    held = parts.tensors()
    assert held["collector/running"].any()
    assert held["scaler/carried"].any()
    parts.restore(held)
    after = parts.tensors()
    assert not after["collector/running"].any()
    assert not after["scaler/carried"].any()
    assert torch.equal(after["collector/ended"], held["collector/ended"])


def test_it_is_evaluated_on_environments_of_its_own(tmp_path: Path) -> None:
    given = {**SIZES, "env": "device_envs:ladders", "runs_dir": str(tmp_path), "run_name": "a"}
    given |= {"eval_episodes": 7, "timesteps": 96 * 2}
    outcome = train(resolve(given, on_gpu=False))
    assert outcome.evaluation is not None
    assert len(outcome.evaluation.returns) == 7
    report = evaluate_run(tmp_path / "a", episodes=5, device="cpu").report
    assert len(report.returns) == 5


def test_evaluation_is_the_tensor_pools() -> None:
    parts = trained(EnvFactory("tensor/CartPole-v1"), 4)

    def result(make: Callable[..., Any], episodes: int) -> Any:
        given: dict[str, Any] = {"episodes": episodes, "seed": 1, "max_steps": 600}
        return evaluate(
            parts.policy, EnvFactory(make), parts.pool.spec, CPU, pool="tensor", **given
        )

    assert result(lambda: Isaac(CartPole(), 4), 4) == result(CartPole, 4)
    few = result(lambda: Isaac(CartPole(), 9), 4)
    assert (len(few.returns), few.unfinished) == (4, 0), "of nine, four play"
    assert len(result(lambda: Isaac(CartPole(), 3), 8).returns) == 8


def test_an_error_amid_a_rollout_does_not_end_learning() -> None:
    envs = Isaac(Ladder(), 6)
    model = PPO("MlpPolicy", envs, **SIZES)
    step, calls = envs.step, []

    def stumble(actions: Any) -> Any:
        calls.append(1)
        return step(actions) if len(calls) != 5 else (1, 2)

    envs.step = stumble  # type: ignore[method-assign]
    with pytest.raises(BadValueError, match="returned 2 values"):
        model.learn(96)
    model.learn(96)
    assert model.num_timesteps == 96


def test_a_value_that_is_not_finite_ends_the_run_in_words() -> None:
    class Bursts(Isaac):
        def step(self, actions: Any) -> Any:
            obs, reward, *rest = super().step(actions)
            return obs, reward / 0, *rest

    with pytest.raises(BadValueError, match=r"rewards or observations of <Bursts> were NaN"):
        PPO("MlpPolicy", Bursts(Ladder(), 6), **SIZES).learn(96)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pool": "process"}, "pool is process, and .*ladders is a tensor environment"),
        ({"collect": "overlap"}, "there is nothing to overlap with"),
    ],
)
def test_what_it_cannot_do(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        built(EnvFactory("device_envs:ladders"), **settings)


def test_from_the_command_line(stoker: Callable[..., Any]) -> None:
    checked = stoker("check", "device_envs:ladders", "--device", "cpu")
    assert checked.returncode == 0, checked.stderr
    assert "8 environments that live on the device" in checked.stdout
    words = "--n-envs 8 --n-steps 16 --batch-size 32 --timesteps 256 --device cpu --eval-episodes 3"
    done = stoker("train", "--env", "device_envs:ladders", *words.split())
    assert done.returncode == 0, done.stderr
    assert "8 environments that live on the device" in done.stdout
