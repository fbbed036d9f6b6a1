"""Stoker's kernels in training, as plain torch on a CPU: what is learned, kept and handed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensor_envs import Ladder

from stoker.config import resolve
from stoker.config.vary import drawn_settings
from stoker.envs.registry import EnvFactory
from stoker.envs.tensor.cart_pole import CartPole
from stoker.envs.tensor.pendulum import Pendulum
from stoker.errors import BadValueError, ConfigError
from stoker.learn.fused import FusedLearner
from stoker.learn.learner import Learner
from stoker.train import build as build_module
from stoker.train import loop, swap
from stoker.train.build import build
from stoker.train.parts import Parts
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.start import resume, train

SIZES: dict[str, Any] = {"n_envs": 8, "n_steps": 16, "batch_size": 32, "n_epochs": 2}
SIZES |= {"network_arch": (32, 32), "device": "cpu", "eval_episodes": 0}
FUSED = {"kernels": "fused", "compile_in": "foreground"}


def parts_of(make_env: Callable[..., Any], iterations: int, **settings: Any) -> Parts:
    given = {"env": "test", **SIZES, **settings}
    steps = iterations * given["n_envs"] * given["n_steps"]
    return build(resolve({**given, "timesteps": steps}, on_gpu=False), EnvFactory(make_env))


def trained(make_env: Callable[..., Any], iterations: int, **settings: Any) -> Parts:
    parts = parts_of(make_env, iterations, **settings)
    loop.run(Session(parts, None), lambda progress: None, StopRequest(None))
    return parts


def assert_same(ours: Any, theirs: Any, **tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if tolerance:
            torch.testing.assert_close(ours[name], value, **tolerance)
        else:
            assert torch.equal(ours[name], value), name


@pytest.mark.parametrize("make_env", [Ladder, Pendulum])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("target_kl", [None, 1e-7])
@pytest.mark.parametrize("arch", [(32, 32), (160, 32)], ids=["small", "wide"])
def test_a_lesson_is_the_torch_learners(
    make_env: Callable[..., Any], normalize: bool, target_kl: float | None, arch: tuple[int, ...]
) -> None:
    """One minibatch an epoch, so that no shuffle tells them apart."""
    settings = {"normalize_obs": normalize, "normalize_reward": normalize, "ent_coef": 0.01}
    settings |= {
        "network_arch": arch,
        "batch_size": 128,
        "n_epochs": 3,
        "target_kl": target_kl,
        "clip_range_vf": 0.2,
    }
    ours, theirs = (parts_of(make_env, 9, **settings, **more) for more in (FUSED, {}))
    assert isinstance(ours.learner, FusedLearner)
    assert isinstance(theirs.learner, Learner)
    for _ in range(3):
        for parts in (ours, theirs):
            parts.learner.anneal(0.7)
        rollout = ours.collector.collect()
        for name, rows in vars_of(theirs.collector.storage).items():  # type: ignore[union-attr]
            rows.copy_(vars_of(rollout)[name])
        reports = [parts.lesson(parts.collector.storage) for parts in (ours, theirs)]  # type: ignore[union-attr]
        assert_same(reports[0].metrics, reports[1].metrics, rtol=2e-3, atol=2e-5)
        assert_same(ours.policy.state_dict(), theirs.policy.state_dict(), rtol=1e-3, atol=2e-5)
    if target_kl:
        assert reports[0].metrics["train/n_updates"] < 3


def vars_of(storage: Any) -> dict[str, torch.Tensor]:
    """What environments and whoever acted have left in a storage."""
    kept = storage._rollout
    fields = {name: getattr(kept, name) for name in ("action", "reward", "terminated", "truncated")}
    fields["log_prob"] = kept.behaviour_log_prob
    for leaf, rows in kept.obs.items():
        fields |= {f"obs.{leaf}": rows, f"final.{leaf}": storage.final_obs[leaf]}
    return fields


def test_it_learns() -> None:
    settings = {"n_envs": 32, "n_steps": 32, "batch_size": 256, "n_epochs": 4}
    parts = trained(Ladder, 60, **settings, **FUSED)
    untaught = trained(Ladder, 1, **settings, **FUSED)
    reward = "rollout/ep_rew_mean"
    assert parts.collector.metrics()[reward] > 2 * untaught.collector.metrics()[reward]


def test_the_same_seed_gives_the_same_bits_and_another_others() -> None:
    once, again, other = (trained(Pendulum, 4, seed=seed, **FUSED) for seed in (3, 3, 4))
    assert_same(once.policy.state_dict(), again.policy.state_dict())
    ours, theirs = (parts.policy.decide.weight for parts in (once, other))
    assert not torch.equal(ours, theirs)


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def run(name: str, steps: int) -> dict[str, torch.Tensor]:
        given = {"env": "tensor_envs:Ladder", **SIZES, **FUSED, "run_name": name}
        given |= {"runs_dir": str(tmp_path), "lr_schedule": "constant", "timesteps": steps}
        train(resolve(given, on_gpu=False))
        return newest(tmp_path / name)

    whole = run("whole", 8 * 128)
    run("cut", 4 * 128)
    resume(tmp_path / "cut", timesteps=8 * 128)
    assert_same(newest(tmp_path / "cut"), whole)


def newest(path: Path) -> dict[str, torch.Tensor]:
    from stoker.runs import checkpoint

    return dict(checkpoint.load_newest(path / "checkpoints")[1].tensors)


@pytest.mark.parametrize(("first", "then"), [(FUSED, {}), ({}, FUSED)])
def test_what_one_has_learned_the_other_goes_on_from(
    first: dict[str, Any], then: dict[str, Any]
) -> None:
    before = trained(Pendulum, 3, **first)
    after = parts_of(Pendulum, 6, **then)
    after.restore(before.tensors())
    assert_same(after.tensors(), before.tensors())
    loop.run(Session(after, None), lambda progress: None, StopRequest(None))


def test_they_take_over_amid_a_run_with_what_was_learned(monkeypatch: Any) -> None:
    monkeypatch.setattr(swap, "AFTER_S", 0.0)
    monkeypatch.setattr(swap, "WORTH_S", 0.0)
    monkeypatch.setattr(build_module, "gains_from_kernels", lambda parts: True)
    parts = parts_of(Pendulum, 40)
    kept: list[dict[str, torch.Tensor]] = []
    real = swap.Swap.take_over

    def take_over(self: swap.Swap, built: swap.Built) -> Any:
        kept.append({name: value.clone() for name, value in parts.tensors().items()})
        decision = real(self, built)
        kept.append({name: value.clone() for name, value in parts.tensors().items()})
        return decision

    monkeypatch.setattr(swap.Swap, "take_over", take_over)
    said = []
    loop.run(Session(parts, None), lambda told: said.append(told.decision), StopRequest(None))
    parts.close()
    assert_same(kept[1], kept[0])
    assert int(kept[0]["learner/step.judge.bias"]) > 0, "it was not the first iteration"
    (decision,) = (found for found in said if found)
    assert (decision.what, decision.chosen) == ("kernels", "fused")
    assert isinstance(parts.learner, FusedLearner)


def test_what_cannot_be_built_leaves_training_as_it_was(monkeypatch: Any) -> None:
    monkeypatch.setattr(swap, "AFTER_S", 0.0)
    monkeypatch.setattr(swap, "WORTH_S", 0.0)

    def fail(self: swap.Swap) -> swap.Built:
        raise RuntimeError("no compiler\nand much more")

    monkeypatch.setattr(swap.Swap, "build", fail)
    monkeypatch.setattr(build_module, "gains_from_kernels", lambda parts: True)
    with pytest.warns(UserWarning, match=r"could not be built \(RuntimeError: no compiler\), so"):
        parts = trained(Pendulum, 6)
    assert isinstance(parts.learner, Learner)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"network_arch": (16, 1024)}, "the network is too large for them"),
        ({"critic_arch": (16,)}, "the critic has other layers than the actor"),
        ({"n_envs": 1, "n_steps": 34, "batch_size": 34}, "34 rows cannot be shuffled"),
    ],
)
def test_what_they_cannot_serve_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"kernels is fused, and .*{said}"):
        parts_of(Ladder, 1, **settings, **FUSED)
    assert parts_of(Ladder, 1, **settings).fused is None


def test_asked_for_by_name_they_serve_from_the_beginning() -> None:
    parts = parts_of(Pendulum, 2, kernels="fused")
    assert isinstance(parts.learner, FusedLearner)
    assert parts.trial is None


def test_what_is_seen_may_have_no_dimensions() -> None:
    class Point(Pendulum):
        observation_space = spaces.Box(-1000, 1000, (), np.float32)

        def observe(self, state: Any) -> torch.Tensor:
            return super().observe(state)[:, 0]

    assert torch.isfinite(trained(Point, 3, **FUSED).policy.decide.weight).all()


def test_after_a_roll_back_other_noise_stays_other_noise() -> None:
    """In whoever goes on from what was saved then."""
    before = trained(Pendulum, 2, **FUSED)
    before.reseed()
    saved = {name: value.clone() for name, value in before.tensors().items()}
    actions = before.collector.collect().rollout.action.clone()  # type: ignore[union-attr]
    for apart in (False, True):
        after = parts_of(Pendulum, 4, **FUSED)
        after.restore(saved)
        if apart:
            after.reseed()
        drawn = after.collector.collect().rollout.action  # type: ignore[union-attr]
        assert torch.equal(drawn, actions) != apart


# Many agents at once.


class Fragile(Ladder):
    """Breaks where its number is not spared."""

    spared = 8

    def observe(self, state: Any) -> torch.Tensor:
        seen = super().observe(state)
        broken = torch.arange(len(seen)) >= self.spared
        return torch.where(broken[:, None] & (seen[:, 2:] > 5), torch.nan, seen)


def test_an_agent_that_goes_astray_is_left_alone_and_counted() -> None:
    crowd = parts_of(Fragile, 6, population=3, log_every=1)
    told: list[dict[str, float]] = []
    loop.run(Session(crowd, None), lambda now: told.append(now.metrics), StopRequest(None))
    assert told[-1]["population/astray"] == 2
    assert told[-1]["population/skipping"] == 2
    alone = trained(Ladder, 6, **FUSED)
    assert_same(crowd.policies[0].state_dict(), alone.policy.state_dict(), rtol=1e-4, atol=1e-5)


def test_where_all_go_astray_the_environment_is_to_blame() -> None:
    class Broken(Fragile):
        spared = 0

    with pytest.raises(BadValueError, match=r"of .*Broken were NaN or infinite"):
        trained(Broken, 6, population=3)


VARY = {"lr": "1e-4..1e-2", "ent_coef": [0, 0.01], "clip_range": "0.05..0.4", "vf_coef": "0..1"}


@pytest.mark.parametrize("vary", [{}, VARY], ids=["alike", "varied"])
def test_each_agent_of_a_population_learns_what_it_would_alone(vary: dict[str, Any]) -> None:
    settings = {"ent_coef": 0.01, "clip_schedule": "linear", **FUSED}
    crowd = trained(CartPole, 5, seed=7, population=3, vary=vary, **settings)
    assert crowd.pool.n_envs == 24
    means = crowd.collector.episodes.means()  # type: ignore[union-attr]
    drawn = drawn_settings(vary, seed=7, agents=3)
    assert [len(own) for own in drawn] == [len(vary)] * 3
    for number, policy in enumerate(crowd.policies):
        alone = trained(CartPole, 5, **{**settings, "seed": 7 + number, **drawn[number]})
        assert_same(policy.state_dict(), alone.policy.state_dict(), rtol=1e-4, atol=1e-5)
        own = alone.collector.episodes.means()  # type: ignore[union-attr]
        torch.testing.assert_close(means[:, number], own[:, 0])
    assert crowd.policy is crowd.policies[int(means[0].argmax())]


def test_a_population_is_refused_where_environments_are_not_tensors() -> None:
    given = {"env": "CartPole-v1", **SIZES, "timesteps": 128, "population": 2}
    with pytest.raises(ConfigError, match="population is 2, and CartPole-v1 is no tensor"):
        build(resolve(given, on_gpu=False))


def test_a_stopped_population_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def run(name: str, steps: int) -> dict[str, torch.Tensor]:
        given = {"env": "tensor_envs:Ladder", **SIZES, "run_name": name, "population": 3}
        given |= {"runs_dir": str(tmp_path), "lr_schedule": "constant", "timesteps": steps}
        train(resolve(given, on_gpu=False))
        return newest(tmp_path / name)

    whole = run("whole", 8 * 128)
    run("cut", 4 * 128)
    resume(tmp_path / "cut", timesteps=8 * 128)
    assert_same(newest(tmp_path / "cut"), whole)
