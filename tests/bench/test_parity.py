"""The bench that holds Stoker beside Stable-Baselines3: both sides get the same settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import parity
from bench.peers.trial import Trained, Trial, in_process
from bench.zoo import ZOO, Case, DQNCase, Falling, PPOCase
from stoker.config import resolve
from stoker.config.schema import Config

PPO = {name: name for name in ("n_steps", "n_epochs", "batch_size", "gamma", "gae_lambda")}
PPO |= {name: name for name in ("ent_coef", "vf_coef", "max_grad_norm")}
DQN = {
    "n_steps": "train_freq",
    "batch_size": "batch_size",
    "buffer_size": "buffer_size",
    "learning_rate": "learning_rate",
    "gamma": "gamma",
    "max_grad_norm": "max_grad_norm",
    "n_step_return": "n_steps",
    "epsilon_start": "exploration_initial_eps",
    "epsilon_end": "exploration_final_eps",
    "epsilon_fraction": "exploration_fraction",
}
POLICY = {"network_arch": "net_arch", "activation": "activation_fn"}
ROLL_OF_CASES = [pytest.param(case, id=f"{case.algo} {case.env}") for case in ZOO]


def resolved(case: Case) -> Config:
    env = {"env": case.env, "algo": case.algo.lower(), "timesteps": case.steps}
    return resolve({**case.ours, **env}, on_gpu=False)


@pytest.mark.parametrize("case", ROLL_OF_CASES)
def test_stoker_takes_its_settings_and_both_sides_have_the_same(case: Case) -> None:
    ours, theirs = resolved(case).flat(), case.theirs
    names = PPO if isinstance(case, PPOCase) else DQN
    assert {name: ours[name] for name in names} == {n: theirs[names[n]] for n in names}
    policy = dict(theirs["policy_kwargs"])
    if isinstance(case, PPOCase) and case.images:
        policy["net_arch"] = [512]  # after SB3's convolutions, if it is told of no layer
    assert {name: ours[name] for name in POLICY} == {n: policy[POLICY[n]] for n in POLICY}
    assert ours["device"] == theirs["device"]
    assert ours["n_envs"] == case.n_envs
    assert ours["normalize_obs"] == case.normalize


@pytest.mark.parametrize("case", [case for case in ZOO if isinstance(case, PPOCase)])
def test_numbers_fall_alike(case: PPOCase) -> None:
    from bench.peers.trial import _unwritten

    ours = resolved(case).ppo
    for name, schedule in (("learning_rate", ours.lr_schedule), ("clip_range", ours.clip_schedule)):
        theirs = _unwritten(case.theirs[name])
        later = getattr(ours, name) * (0.25 if schedule == "linear" else 1.0)
        assert (theirs(0.25) if callable(theirs) else theirs) == pytest.approx(later)


@pytest.mark.parametrize("case", [case for case in ZOO if isinstance(case, DQNCase)])
def test_as_many_updates_and_targets_are_made(case: DQNCase) -> None:
    ours = resolved(case).dqn
    lessons = range(case.train_freq, case.steps + 1, case.train_freq)
    theirs = sum(case.gradient_steps for steps in lessons if steps > case.learning_starts)
    made = ours.update_ratio * (lessons[-1] - ours.learning_starts)
    assert made == theirs
    copies = case.steps / max(case.target_update_interval, case.train_freq)
    assert made / ours.target_every == pytest.approx(copies, rel=0.02)


def test_no_schedule_is_shortened() -> None:
    """What falls over a shorter run falls faster: it would not be a part of the zoo's run."""
    for case in ZOO:
        falls = any(isinstance(value, Falling) for value in vars(case).values())
        assert not (falls and case.shortened)


def test_either_side_trains_in_a_process_of_its_own() -> None:
    case = replace(ZOO[0], timesteps=1024)
    for side in ("stoker", "sb3"):
        ended = in_process(parity.trial_of(case, side, seed=1), limit_s=60.0)
        assert 8.0 < ended.reward <= 500.0
        steps, seconds, reward = ended.curve[-1]
        assert (steps, reward) == (1024, ended.episodes_reward)
        assert 0 < seconds <= ended.wall_s
        assert [point[0] for point in ended.curve] == sorted(point[0] for point in ended.curve)


def test_a_process_that_fails_says_why() -> None:
    trial = parity.trial_of(replace(ZOO[0], env="NoSuch-v0"), "sb3", seed=3)
    with pytest.raises(RuntimeError, match=r"(?s)sb3, PPO on NoSuch-v0, seed 3.*Cannot make"):
        in_process(trial, 60.0)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Trial]:
    """Trials instead of which a figure comes back: seed and side alone make it."""
    asked: list[Trial] = []

    def pretend(trial: Trial, limit_s: float) -> Trained:
        asked.append(trial)
        reward = 10.0 * (trial.side == "stoker") + trial.seed
        seconds = 1.0 if trial.side == "stoker" else 2.0
        curve = [[0.0, 0.0, 0.0], [trial.steps, seconds, reward]]
        return Trained(reward, reward, seconds, seconds * 0.99, curve)

    monkeypatch.setattr(parity, "in_process", pretend)
    monkeypatch.setattr(parity, "_KEPT", tmp_path / "runs" / "kept.jsonl")
    return asked


def only_row(case: Case) -> dict[str, Any]:
    (row,) = parity._parity(case)
    assert row.details is not None
    return row._asdict() | row.details


def test_a_row_says_whether_the_sides_differ_and_which_is_quicker(made_up: list[Trial]) -> None:
    row = only_row(ZOO[0])
    assert (row["ours"], row["peer"]) == (12.0, 2.0)
    assert row["significant"]
    assert row["difference"].mean == 10.0
    assert row["times_as_fast"] == 2.0
    assert row["wall_clock_counts"]
    assert row["over_steps"]["ours"]["mean"][-1] == 12.0


def test_seeds_that_are_done_are_not_trained_again(made_up: list[Trial]) -> None:
    first = only_row(replace(ZOO[0], seeds=2))
    assert len(made_up) == 4
    whole = only_row(replace(ZOO[0], seeds=3))
    assert sorted((trial.side, trial.seed) for trial in made_up[4:]) == [("sb3", 2), ("stoker", 2)]
    assert whole["rewards"]["ours"][:2] == first["rewards"]["ours"]
    only_row(replace(ZOO[0], seeds=2, gamma=0.5))
    assert len(made_up) == 10, "other settings are another training"
