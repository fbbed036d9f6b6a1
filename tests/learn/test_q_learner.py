"""The learner of DQN: how many updates, from which rows, and when the target moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker.config.schema import DQNSettings
from stoker.kernels.descent import FlatDescent
from stoker.learn.q_learner import OneByOne, QLearner
from stoker.storage.replay import Replay
from stoker.train import snapshot
from stoker.types import PLAIN, ActionSpec, EnvSpec, Finals, LeafSpec, QLoss, Rollout, Transitions

CPU = torch.device("cpu")
SPEC = EnvSpec(
    "made up",
    {PLAIN: LeafSpec("vector", (1,), "float32")},
    ActionSpec("discrete", (), "int64", nvec=(2,), start=(0,)),
)
STEPS, BATCH = 16, 4


class Scene:
    """A replay of rows that each saw their own number, and a loss that notes which it was given."""

    def __init__(self, loss: float = 1.0, **settings: Any) -> None:
        options = {"n_steps": 8, "batch_size": BATCH, "buffer_size": 400, "learning_rate": 0.1}
        options |= {"learning_starts": 0, "update_ratio": 0.5, **settings}
        self.settings = DQNSettings(**options)
        self.replay = Replay(SPEC, 400, 1, 1, 0.9, self.settings.per_alpha, CPU)
        self.weight = nn.Parameter(torch.zeros(3))
        self.target = torch.zeros(3)
        self.epsilon = torch.tensor(1.0)
        self.seen: list[list[int]] = []
        self.loss, self.appended = loss, 0
        parameters = {"weight": self.weight}
        descent = FlatDescent(parameters, 1e-8, self.settings.max_grad_norm)
        updates = OneByOne(self.gradient, descent)
        given = (self.settings, BATCH, 0, self.epsilon)
        self.learner = QLearner(parameters, [self.target], updates, descent, self.replay, *given)

    def gradient(self, batch: Transitions, noise: Tensor | None) -> QLoss:
        numbers = batch.obs[PLAIN][: len(batch.reward), 0]
        self.seen.append(numbers.long().tolist())
        total = self.loss * (self.weight.sum() + 1)
        total.backward()
        return QLoss(total, numbers, {"train/loss": total.detach()})

    def append(self, steps: int = STEPS) -> int:
        numbers = torch.arange(self.appended, self.appended + steps, dtype=torch.float32)[:, None]
        self.appended += steps
        no = torch.zeros_like(numbers, dtype=torch.bool)
        fields: dict[str, Any] = dict.fromkeys(Rollout._fields)
        fields |= {"obs": {PLAIN: numbers[..., None]}, "action": numbers[..., None].long() % 2}
        fields |= {"reward": numbers, "terminated": no, "truncated": no, "valid": ~no}
        none = {PLAIN: torch.zeros(0, 1)}
        self.replay.append(Rollout(**fields), Finals(torch.zeros(0, dtype=torch.int64), none))
        return steps

    def lesson(self, steps: int = STEPS) -> dict[str, float]:
        report = self.learner.learn(self.append(steps))
        return {name: float(value) for name, value in report.metrics.items()}


def test_updates_are_made_to_the_ratio_and_fractions_are_kept() -> None:
    scene = Scene(update_ratio=0.3)
    made = []
    for _ in range(10):
        before = len(scene.seen)
        metrics = scene.lesson()
        made.append(len(scene.seen) - before)
        assert metrics["train/n_updates"] == made[-1]
    assert sum(made) == 48
    assert set(made) == {4, 5}
    assert metrics["train/update_ratio"] == pytest.approx(0.3, abs=0.01)


def test_nothing_is_learned_nor_owed_before_it_starts() -> None:
    scene = Scene(learning_starts=40, update_ratio=1.0)
    made = []
    for _ in range(4):
        before = len(scene.seen)
        scene.lesson()
        made.append(len(scene.seen) - before)
    assert made == [0, 0, 8, 16]


@pytest.mark.parametrize("per", [False, True])
def test_rows_that_wait_for_what_follows_are_not_sampled(per: bool) -> None:
    scene = Scene(update_ratio=4.0, per=per)
    scene.lesson()
    seen = {row for batch in scene.seen for row in batch}
    assert seen == set(range(STEPS - 1))


def test_all_alike_means_as_often() -> None:
    scene = Scene(update_ratio=100.0)
    scene.lesson()
    counts = torch.bincount(torch.tensor(scene.seen).flatten())
    expected = 100 * STEPS * BATCH / (STEPS - 1)
    assert (counts - expected).abs().max() < 5 * expected**0.5


def test_priorities_become_the_errors() -> None:
    scene = Scene(update_ratio=20.0, per=True, per_alpha=1.0)
    scene.lesson()
    held = scene.replay.priorities.tree.levels[0][:STEPS]
    assert held.tolist() == pytest.approx([*range(STEPS - 1), 0], abs=1e-4)
    before = len(scene.seen)
    scene.lesson(0)
    assert len(scene.seen) == before  # no step, no update


@pytest.mark.parametrize(("tau", "expected"), [(1.0, 1.0), (0.25, 0.25)])
def test_the_target_follows_every_so_many_updates(tau: float, expected: float) -> None:
    scene = Scene(update_ratio=1.0, target_every=20, tau=tau, max_grad_norm=100.0)
    scene.lesson()  # 16 updates
    assert scene.target.tolist() == [0.0] * 3
    scene.lesson(4)
    assert scene.target.tolist() == pytest.approx((expected * scene.weight).tolist())


def test_an_update_that_is_not_finite_is_skipped_and_counted() -> None:
    scene = Scene(loss=float("nan"), per=True)
    report = scene.learner.learn(scene.append())
    assert float(report.skipped) == 8
    assert scene.weight.tolist() == [0.0] * 3
    assert not any(scene.learner.state()["exp_avg.weight"].tolist())
    held = scene.replay.priorities.tree.levels[0]
    assert set(held.tolist()) == {0.0, 1.0}


def test_where_nothing_can_be_sampled_nothing_is_made_nor_counted_as_bad() -> None:
    scene = Scene()
    report = scene.learner.learn(STEPS)  # of which the replay got none
    assert float(report.skipped) == 0
    assert float(report.metrics["train/n_updates"]) == 0
    assert scene.weight.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("remaining", "epsilon", "beta", "rate"),
    [(1.0, 1.0, 0.4, 0.1), (0.9, 0.55, 0.46, 0.09), (0.8, 0.1, 0.52, 0.08), (0.0, 0.1, 1.0, 0.0)],
)
def test_schedules(remaining: float, epsilon: float, beta: float, rate: float) -> None:
    scene = Scene(epsilon_end=0.1, epsilon_fraction=0.2, per=True, lr_schedule="linear")
    scene.learner.anneal(remaining)
    metrics = scene.lesson()
    assert float(scene.epsilon) == pytest.approx(epsilon)
    assert metrics["rollout/exploration_rate"] == pytest.approx(epsilon)
    assert metrics["train/beta"] == pytest.approx(beta)
    assert metrics["train/learning_rate"] == pytest.approx(rate)


def test_epsilon_can_fall_over_a_number_of_steps() -> None:
    scene = Scene(epsilon_steps=4 * STEPS, epsilon_end=0.2)
    found = []
    for _ in range(6):
        scene.learner.anneal(0.9)
        found.append(float(scene.epsilon))
        scene.lesson()
    assert found == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_it_goes_on_from_its_state() -> None:
    whole, half = Scene(update_ratio=0.3, per=True), Scene(update_ratio=0.3, per=True)
    for scene in (whole, half):
        scene.lesson()
        scene.lesson()
    again = Scene(update_ratio=0.3, per=True)
    again.learner.restore({name: value.clone() for name, value in half.learner.state().items()})
    seen = {f"obs.{leaf}": rows[:-1].clone() for leaf, rows in half.replay.obs.items()}
    state = {name: value.clone() for name, value in snapshot.state_of(half.replay).items()}
    snapshot.restore(again.replay, state, [{"first": torch.tensor(0), **seen}])
    again.weight.data.copy_(half.weight)
    again.appended = half.appended
    for scene in (whole, again):
        scene.seen.clear()
        scene.lesson()
    assert whole.seen == again.seen
    assert torch.equal(whole.weight, again.weight)


@pytest.mark.parametrize("per", [False, True])
@pytest.mark.parametrize("parts", [(1,), (3, 2, 1), (100, 1)])
def test_updates_in_parts_are_those_made_at_once(per: bool, parts: tuple[int, ...]) -> None:
    """With what comes after the last of them: its priorities, and what is counted."""
    whole, split = Scene(per=per), Scene(per=per)
    for _ in range(3):
        expected = whole.lesson()
        split.learner.take(split.append())
        for left in parts:
            split.learner.go_on(left)
        found = {name: float(value) for name, value in split.learner.report().metrics.items()}
        assert found == expected
        assert split.learner._under_way is None
    assert split.seen == whole.seen
    first, second = (scene.replay.priorities.tree.levels[0] for scene in (whole, split))
    assert torch.equal(first, second)
    assert (len(first[first > 0].unique()) > 1) == per


def test_what_is_under_way_is_given_up_when_something_else_is_restored() -> None:
    scene = Scene()
    scene.lesson()
    saved = {name: value.clone() for name, value in scene.learner.state().items()}
    scene.learner.take(scene.append())
    scene.learner.go_on(4)
    assert scene.learner._under_way is not None
    scene.learner.restore(saved)
    assert scene.learner._under_way is None
    made = len(scene.seen)
    scene.learner.go_on()
    assert len(scene.seen) == made  # nothing is due there
