"""Updates of PPO by hand: the same as by autograd, row for row and bound for bound."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from stoker.algos import ppo
from stoker.config import resolve
from stoker.config.schema import Config
from stoker.learn.learner import Learner
from stoker.learn.q_learner import QLearner
from stoker.nn.actor_critic import ActorCritic
from stoker.train import build as building
from stoker.train import ppo_by_hand
from stoker.train.learning import loss_of
from stoker.train.policies import make_policy
from stoker.train.ppo_by_hand import LearnerByHand, learns_by_hand
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec, Minibatch, Prepared

CPU = torch.device("cpu")
ROWS, MINIBATCH, WIDE = 48, 12, 5


def spec_of(kind: Any, nvec: tuple[int, ...] = (), mask: bool = False) -> EnvSpec:
    shape = () if kind == "discrete" else (len(nvec) or 3,)
    action = ActionSpec(kind, shape, "float32", nvec=nvec, start=(0,) * len(nvec))
    return EnvSpec("made up", {PLAIN: LeafSpec("vector", (WIDE,), "float32")}, action, mask)


SPECS = {
    "discrete": spec_of("discrete", (3,)),
    "masked": spec_of("discrete", (4,), mask=True),
    "columns": spec_of("multi_discrete", (3, 3)),
    "columns of other widths": spec_of("multi_discrete", (2, 4, 3), mask=True),
    "box": spec_of("box"),
    "coins": spec_of("multi_binary"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all else": {
        "ent_coef": 0.03,
        "clip_range_vf": 0.2,
        "activation": "relu",
        "normalize_obs": True,
        "critic_arch": "7",
        "max_grad_norm": 0.02,
    },
    "advantages as they are": {"normalize_advantage": False, "vf_coef": 0.9},
    "stopping": {"target_kl": 0.02, "learning_rate": 3e-3},
}


class Learnt(NamedTuple):
    """Weights, the optimiser's and the shuffling's state, and what was reported."""

    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    metrics: dict[str, Tensor]
    skipped: Tensor


def config_of(**settings: Any) -> Config:
    given = {"env": "x:y", "network_arch": "16,8", "device": "cpu", "n_envs": 1, "n_epochs": 3}
    sizes = {"n_steps": ROWS, "batch_size": MINIBATCH, "learning_rate": 1e-3, "activation": "tanh"}
    return resolve({**given, **sizes, **settings}, on_gpu=False)


def policy_of(spec: EnvSpec, config: Config) -> ActorCritic:
    policy = make_policy(spec, config, CPU, seed=3)
    assert isinstance(policy, ActorCritic)
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():  # biases begin as 0
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    seen = torch.randn(4, 8, WIDE, generator=generator) * 2 + 1
    policy.update_moments({PLAIN: seen}, torch.ones(4, 8, dtype=torch.bool))
    return policy


def rows_of(spec: EnvSpec, policy: ActorCritic) -> Minibatch:
    """What a policy near this one did; a few rows are not valid, and one minibatch's are none."""
    random = torch.Generator().manual_seed(7)
    obs = {PLAIN: torch.randn(ROWS, WIDE, generator=random)}
    mask = None
    if spec.has_mask:
        mask = torch.rand(ROWS, sum(spec.action.nvec), generator=random) < 0.5
        mask[:, np.cumsum([0, *spec.action.nvec[:-1]])] = True
    acted = policy.act(obs, mask, policy.head.draw_noise(ROWS, random))
    near = 0.2 * torch.randn(ROWS, generator=random)  # so that some ratios are out of bounds
    value = policy.value(obs)
    number = torch.arange(ROWS)
    return Minibatch(
        obs,
        acted.action,
        mask,
        acted.log_prob + near,
        torch.rand(ROWS, generator=random) + 0.5,
        value + 0.3 * torch.randn(ROWS, generator=random),
        torch.randn(ROWS, generator=random),
        value + torch.randn(ROWS, generator=random),
        (number % 7 > 0) & (torch.rand(ROWS, generator=random) < 0.9),
    )


def learnt(
    spec: EnvSpec, config: Config, by_hand: bool, spoil: Any = None, learner_of: Any = None
) -> Learnt:
    policy = policy_of(spec, config)
    rows = rows_of(spec, policy)
    if spoil is not None:
        rows = spoil(rows)
    learner = (learner_of or make_learner)(policy, config, rows, by_hand)
    report = learner.learn(rollout_under(version=4), 5)
    weights = {name: p.detach().clone() for name, p in policy.named_parameters()}
    return Learnt(weights, learner.state(), report.metrics, report.skipped)


def rollout_under(version: int) -> Any:
    class Versions(NamedTuple):
        policy_version: Tensor

    return Versions(torch.full((ROWS, 1), version))


def make_learner(policy: ActorCritic, config: Config, rows: Minibatch, by_hand: bool) -> Learner:
    kind: Any = functools.partial(LearnerByHand, policy) if by_hand else Learner
    return kind(
        dict(policy.named_parameters()),
        lambda rollout: Prepared(rows, {}),
        loss_of(policy, config),
        config.ppo,
        config.minibatch,
        CPU,
        seed=11,
        normalise=ppo.normalised if config.ppo.normalize_advantage else None,
    )


def assert_alike(found: Learnt, expected: Learnt) -> None:
    assert found.skipped == expected.skipped
    for mine, other in ((found.weights, expected.weights), (found.metrics, expected.metrics)):
        assert mine.keys() == other.keys()
        for name, value in other.items():
            torch.testing.assert_close(
                mine[name], value, rtol=2e-3, atol=2e-5, equal_nan=True, msg=lambda m, n=name: n + m
            )
    assert found.state.keys() == expected.state.keys()
    for name, value in expected.state.items():
        torch.testing.assert_close(found.state[name], value, rtol=5e-3, atol=2e-5)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_lesson_by_hand_is_a_lesson_by_autograd(spec: EnvSpec, settings: dict[str, Any]) -> None:
    config = config_of(**settings)
    expected = learnt(spec, config, by_hand=False)
    assert_alike(learnt(spec, config, by_hand=True), expected)
    updates, most = expected.metrics["train/n_updates"], 3 * ROWS // MINIBATCH
    assert 0 < updates <= most
    assert (updates < most) == ("target_kl" in settings)
    clipped = expected.metrics["train/clip_fraction"]
    assert 0 < clipped < 1, "both sides of the bounds occur"


def test_the_first_update_may_already_be_too_far() -> None:
    spec, config = SPECS["discrete"], config_of(target_kl=1e-9)
    found = learnt(spec, config, by_hand=True)
    assert_alike(found, learnt(spec, config, by_hand=False))
    assert found.metrics["train/n_updates"] == 0


@pytest.mark.parametrize("spec", [SPECS["masked"], SPECS["box"]], ids=["masked", "box"])
@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *itertools.product(("advantage", "value_target", "log_prob"), (math.nan, math.inf)),
        ("value_target", 2e19),  # the loss is not finite, though its gradient is
    ],
)
def test_updates_that_are_not_finite_are_not_made(spec: EnvSpec, field: str, bad: float) -> None:
    def spoil(rows: Minibatch) -> Minibatch:
        spoilt = getattr(rows, field).clone()
        spoilt[torch.nonzero(rows.valid)[5]] = bad
        return rows._replace(**{field: spoilt})

    config = config_of()
    found = learnt(spec, config, True, spoil)
    assert_alike(found, learnt(spec, config, False, spoil))
    harmless = (field, bad) == ("log_prob", math.inf)  # a ratio of 0
    assert found.skipped == (0 if harmless else 3), "one minibatch an epoch"
    assert all(value.isfinite().all() for value in found.weights.values())


def test_rows_that_are_not_valid_may_hold_anything() -> None:
    def spoil(rows: Minibatch) -> Minibatch:
        bad = torch.full((ROWS,), math.nan)
        spoilt = {
            name: getattr(rows, name).where(rows.valid, bad)
            for name in ("log_prob", "value_target", "value")
        }
        return rows._replace(**spoilt)

    spec, config = SPECS["box"], config_of(clip_range_vf=0.2)
    assert_alike(learnt(spec, config, True, spoil), learnt(spec, config, False, spoil))


def test_a_minibatch_without_a_valid_row_moves_nothing() -> None:
    def spoil(rows: Minibatch) -> Minibatch:
        only = torch.zeros(ROWS, dtype=torch.bool)
        only[:2] = True
        return rows._replace(valid=only)

    spec, config = SPECS["box"], config_of(target_kl=None)
    found = learnt(spec, config, True, spoil)
    assert_alike(found, learnt(spec, config, False, spoil))
    assert 0 < found.metrics["train/n_updates"] < 3 * ROWS // MINIBATCH


def test_weights_that_were_replaced_are_learned_from() -> None:
    """As `torch.nn.utils.vector_to_parameters` replaces them."""

    def replacing(policy: ActorCritic, config: Config, rows: Minibatch, by_hand: bool) -> Learner:
        learner = make_learner(policy, config, rows, by_hand)
        for parameter in policy.parameters():
            parameter.data = 0.5 * parameter.data
        return learner

    for spec in (SPECS["discrete"], SPECS["box"]):
        found = learnt(spec, config_of(), True, learner_of=replacing)
        assert_alike(found, learnt(spec, config_of(), False, learner_of=replacing))


def test_gradients_may_be_forgotten_by_whoever_wants_to() -> None:
    def forgetting(policy: ActorCritic, config: Config, rows: Minibatch, by_hand: bool) -> Learner:
        learner = make_learner(policy, config, rows, by_hand)
        policy.zero_grad()
        return learner

    spec = SPECS["box"]
    found = learnt(spec, config_of(), True, learner_of=forgetting)
    assert_alike(found, learnt(spec, config_of(), False))


def _to_and_fro(policy: ActorCritic) -> None:
    policy.double().float()  # torch puts gradients elsewhere, too


def _shared(policy: ActorCritic) -> None:
    policy.share_memory()  # moves what all parameters are parts of


@pytest.mark.parametrize("move", [_to_and_fro, _shared])
@pytest.mark.parametrize("spec", [SPECS["discrete"], SPECS["box"]], ids=["discrete", "box"])
def test_a_policy_may_be_moved_between_lessons(spec: EnvSpec, move: Any) -> None:
    def moving(policy: ActorCritic, config: Config, rows: Minibatch, by_hand: bool) -> Learner:
        learner = make_learner(policy, config, rows, by_hand)
        learner.learn(rollout_under(version=0), 0)
        move(policy)
        return learner

    found = learnt(spec, config_of(target_kl=None), True, learner_of=moving)
    assert_alike(found, learnt(spec, config_of(target_kl=None), False, learner_of=moving))


def test_what_is_annealed_is_learned_by() -> None:
    def annealed(policy: ActorCritic, config: Config, rows: Minibatch, by_hand: bool) -> Learner:
        learner = make_learner(policy, config, rows, by_hand)
        learner.anneal(0.3)
        return learner

    spec = SPECS["discrete"]
    config = config_of(target_kl=None, lr_schedule="linear", clip_schedule="linear")
    found = learnt(spec, config, True, learner_of=annealed)
    assert_alike(found, learnt(spec, config, False, learner_of=annealed))
    assert any(
        not torch.allclose(found.weights[name], value, rtol=1e-2)
        for name, value in learnt(spec, config, True).weights.items()
    )


def test_an_epoch_may_be_too_large_to_be_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS["masked"]
    for settings in ({"target_kl": None}, {"target_kl": 0.02, "learning_rate": 3e-3}):
        expected = learnt(spec, config_of(**settings), True)
        monkeypatch.setattr(ppo_by_hand, "MOST", 3 * MINIBATCH * WIDE)
        found = learnt(spec, config_of(**settings), True)
        monkeypatch.undo()
        assert_alike(found, expected)
        assert all(torch.equal(found.weights[name], expected.weights[name]) for name in found[0])


def test_who_learns_by_hand() -> None:
    spec, config = SPECS["discrete"], config_of()
    assert learns_by_hand(policy_of(spec, config), config)
    for settings in (
        {"shared_trunk": True},
        {"executor": "compile"},
        {"micro_batch": MINIBATCH // 2},
        {"activation": "silu"},
    ):
        other = config_of(**settings)
        assert not learns_by_hand(policy_of(spec, other), other), settings


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_seen_may_be_a_single_number(algo: str, normalize: bool) -> None:
    settings = {"n_envs": 2, "n_steps": 16, "batch_size": 8, "normalize_obs": normalize}
    settings |= {"env": "tasks:Scalar", "algo": algo, "device": "cpu", "pool": "inline"}
    settings |= {"learning_starts": 16} if algo == "dqn" else {}
    parts = building.build(resolve(settings, on_gpu=False))
    try:
        for _ in range(3):
            report = parts.lesson(parts.collector.collect())
        assert report.metrics["train/n_updates"] > 0
        assert isinstance(parts.learner, LearnerByHand if algo == "ppo" else QLearner)
    finally:
        parts.close()


def test_a_loss_may_be_asked_for_beside_it() -> None:
    """Parameters stay what autograd can be asked about."""
    spec, config = SPECS["box"], config_of()
    policy = policy_of(spec, config)
    rows = rows_of(spec, policy)
    learner = make_learner(policy, config, rows, by_hand=True)
    learner.learn(rollout_under(version=0), 0)
    arguments = (rows.obs, rows.action_mask, rows.action)
    now = functional_call(policy, dict(policy.named_parameters()), arguments)
    (slope,) = torch.autograd.grad(now.value.sum(), [policy.judge.weight])
    assert slope.abs().sum() > 0
