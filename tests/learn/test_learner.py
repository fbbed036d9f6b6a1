"""The learner: every row once an epoch, the gradient autograd gives, and updates that are not made.

Row i of the prepared rollout has the value i, so a batch says which rows it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker.config.schema import PPOSettings
from stoker.learn.learner import Learner
from stoker.types import PLAIN, Loss, Minibatch, Prepared, Rollout

CPU = torch.device("cpu")
ROWS, MINIBATCH = 24, 6
Parameters = Mapping[str, Tensor]


def settings_of(n_epochs: int = 1, **changes: Any) -> PPOSettings:
    return PPOSettings(n_steps=ROWS, batch_size=MINIBATCH, n_epochs=n_epochs, **changes)


def make_rows() -> Minibatch:
    number = torch.arange(ROWS, dtype=torch.float32)
    random = torch.Generator().manual_seed(0)
    return Minibatch(
        obs={PLAIN: torch.randn(ROWS, 3, generator=random), "mark": number.clone()},
        action=number[:, None].long(),
        action_mask=(number[:, None].long() >> torch.arange(5)) % 2 == 1,
        log_prob=number.clone(),
        importance=number.clone(),
        value=number.clone(),
        advantage=number.clone(),
        value_target=torch.randn(ROWS, generator=random),
        valid=number % 2 == 0,
    )


def make_rollout(version: int = 0) -> Rollout:
    """Only the versions count: `prepare` gives the rows."""
    x = torch.zeros(ROWS, 1)
    never = x.bool()
    versions = torch.full((ROWS, 1), version)
    last = torch.zeros(1)
    return Rollout({}, x, None, x, versions, x, x, x, never, never, x, ~never, last, None)


def prepare(rollout: Rollout) -> Prepared:
    return Prepared(make_rows(), {"train/explained_variance": torch.tensor(0.5)})


def squared_error(parameters: Parameters, batch: Minibatch, clip: Tensor) -> Loss:
    """A line fitted to the targets."""
    guess = batch.obs[PLAIN] @ parameters["weight"] + parameters["bias"]
    total = ((guess - batch.value_target) ** 2).mean()
    return Loss(total, torch.zeros(()), {"train/loss": total.detach()})


def make_parameters() -> dict[str, nn.Parameter]:
    weight = torch.tensor([0.5, -1.0, 2.0])
    return {"weight": nn.Parameter(weight), "bias": nn.Parameter(torch.tensor(0.1))}


def make_learner(
    loss: Callable[..., Loss] = squared_error, seed: int = 0, **settings: Any
) -> Learner:
    options = settings_of(**settings)
    return Learner(make_parameters(), prepare, loss, options, MINIBATCH, CPU, seed)


def values(learner: Learner) -> dict[str, Tensor]:
    """The parameters and Adam's state, copied."""
    state = {name: p.detach().clone() for name, p in learner.parameters.items()}
    return state | {name: value.clone() for name, value in learner.state().items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


class Recorder:
    """A loss that notes which rows it saw and the parameters it saw them with.

    `change` makes another loss of the n-th call's.
    """

    def __init__(self, change: Callable[[int, Loss, Parameters], Loss] | None = None) -> None:
        self.batches: list[Minibatch] = []
        self.seen: list[dict[str, Tensor]] = []
        self._change = change

    def __call__(self, parameters: Parameters, batch: Minibatch, clip: Tensor) -> Loss:
        number = len(self.batches)
        self.batches.append(batch)
        self.seen.append({name: p.detach().clone() for name, p in parameters.items()})
        loss = squared_error(parameters, batch, clip)
        loss = loss._replace(metrics={**loss.metrics, "train/call": torch.tensor(float(number))})
        return self._change(number, loss, parameters) if self._change else loss


def test_every_epoch_sees_each_row_once_in_another_order() -> None:
    recorder = Recorder()
    make_learner(recorder, n_epochs=5).learn(make_rollout(), version=0)
    assert len(recorder.batches) == 5 * ROWS // MINIBATCH
    order = torch.cat([batch.value for batch in recorder.batches]).view(5, ROWS)
    torch.testing.assert_close(order.sort(1).values, torch.arange(24.0).expand(5, -1))
    assert len({tuple(epoch.tolist()) for epoch in order}) == 5
    assert tuple(range(ROWS)) not in {tuple(epoch.tolist()) for epoch in order}


def test_the_fields_of_a_batch_belong_to_the_same_rows() -> None:
    recorder, rows = Recorder(), make_rows()
    make_learner(recorder).learn(make_rollout(), version=0)
    for batch in recorder.batches:
        index = batch.value.long()
        assert torch.equal(batch.obs["mark"].long(), index)
        assert torch.equal(batch.obs[PLAIN], rows.obs[PLAIN][index])
        assert torch.equal(batch.action[:, 0], index)
        assert batch.action_mask is not None
        assert torch.equal((batch.action_mask * 2 ** torch.arange(5)).sum(1), index)
        assert torch.equal(batch.log_prob.long(), index)
        assert torch.equal(batch.importance.long(), index)
        assert torch.equal(batch.advantage.long(), index)
        assert torch.equal(batch.value_target, rows.value_target[index])
        assert torch.equal(batch.valid, index % 2 == 0)


def test_the_order_follows_from_the_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        recorder = Recorder()
        make_learner(recorder, seed=seed).learn(make_rollout(), version=0)
        orders.append([batch.value.tolist() for batch in recorder.batches])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("max_grad_norm", [0.1, 1e6], ids=["clipped", "not clipped"])
def test_updates_are_adams_on_the_gradient_that_autograd_gives(max_grad_norm: float) -> None:
    recorder = Recorder()
    learner = make_learner(recorder, n_epochs=2, max_grad_norm=max_grad_norm, learning_rate=0.01)
    report = learner.learn(make_rollout(), version=0)

    by_hand = make_parameters()
    adam = torch.optim.Adam(by_hand.values(), lr=0.01, eps=1e-5, fused=False, foreach=False)
    norms = []
    for batch in recorder.batches:
        total = squared_error(by_hand, batch, torch.tensor(0.2)).total
        gradients = torch.autograd.grad(total, list(by_hand.values()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        norms.append(norm)
        for parameter, gradient in zip(by_hand.values(), gradients, strict=True):
            parameter.grad = gradient * min(1.0, max_grad_norm / (float(norm) + 1e-6))
        adam.step()
    for name, parameter in by_hand.items():
        torch.testing.assert_close(learner.parameters[name], parameter, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(report.metrics["train/grad_norm"], torch.stack(norms).mean())
    assert report.metrics["train/n_updates"] == 8
    assert report.skipped == 0


def test_metrics_are_means_over_the_updates() -> None:
    report = make_learner(Recorder(), n_epochs=2).learn(make_rollout(version=3), version=5)
    assert report.metrics["train/call"] == sum(range(8)) / 8
    assert report.metrics["train/explained_variance"] == 0.5
    assert report.metrics["lag/mean"] == report.metrics["lag/max"] == 2.0


def with_kl(*kls: float) -> Recorder:
    """A loss whose n-th call reports the n-th KL."""
    return Recorder(lambda n, loss, _: loss._replace(approx_kl=torch.tensor(kls[n])))


def test_once_the_kl_passes_its_limit_nothing_is_learned_any_more() -> None:
    """The limit is 1.5 x 0.01. The third of the first epoch's four updates passes it."""
    recorder = with_kl(0.0, 0.0149, 0.0151, 0.0)
    learner = make_learner(recorder, n_epochs=3, target_kl=0.01)
    report = learner.learn(make_rollout(), version=0)
    assert len(recorder.batches) == 4  # the epochs after it are not even begun
    assert not same(recorder.seen[0], recorder.seen[1])
    assert not same(recorder.seen[1], recorder.seen[2])
    assert same(recorder.seen[2], recorder.seen[3])
    assert same(recorder.seen[3], {n: p.detach() for n, p in learner.parameters.items()})
    assert report.metrics["train/n_updates"] == 2
    assert report.metrics["train/call"] == (0 + 1) / 2
    assert report.skipped == 0
    assert learner.state()["step.weight"] == 2


def test_the_next_rollout_learns_again_after_a_kl_stop() -> None:
    recorder = with_kl(1.0, *[0.0] * 7)
    learner = make_learner(recorder, target_kl=0.01)
    learner.learn(make_rollout(), version=0)
    assert same(recorder.seen[3], recorder.seen[0])
    report = learner.learn(make_rollout(), version=1)
    assert report.metrics["train/n_updates"] == 4
    assert not same(recorder.seen[5], recorder.seen[4])


def test_without_a_kl_limit_nothing_stops() -> None:
    recorder = with_kl(*[1e9] * 8)
    learner = make_learner(recorder, n_epochs=2, target_kl=None)
    report = learner.learn(make_rollout(), version=0)
    assert report.metrics["train/n_updates"] == 8


def spoilt(loss: Loss, parameters: Parameters, how: str) -> Loss:
    if how in ("nan", "inf"):
        return loss._replace(total=loss.total * float(how))
    if how == "loss alone":
        return loss._replace(total=loss.total + float("nan"))
    # The root of 0 has an infinite slope: a finite loss whose gradient is not.
    distance = (parameters["weight"] - parameters["weight"].detach()).abs().sum()
    return loss._replace(total=loss.total + distance.sqrt())


@pytest.mark.parametrize("how", ["nan", "inf", "loss alone", "gradient alone"])
@pytest.mark.parametrize("bad", [[0], [2], [1, 2]], ids=str)
def test_a_loss_or_gradient_that_is_not_finite_is_skipped_and_counted(
    how: str, bad: list[int]
) -> None:
    """What is left is what would have come of the other minibatches alone."""

    def change(n: int, loss: Loss, parameters: Parameters) -> Loss:
        return spoilt(loss, parameters, how) if n in bad else loss

    recorder = Recorder(change)
    learner = make_learner(recorder)
    report = learner.learn(make_rollout(), version=0)
    assert report.skipped == len(bad)
    assert report.metrics["train/n_updates"] == 4 - len(bad)
    good = [n for n in range(4) if n not in bad]
    assert report.metrics["train/call"] == sum(good) / len(good)
    assert report.metrics["train/loss"].isfinite()

    for n in bad:
        later = recorder.seen[n + 1] if n < 3 else learner.parameters
        assert same(recorder.seen[n], later)
    spared = make_learner()
    for n in good:
        spared._step(make_rows(), recorder.batches[n].value.long())
    expected = values(spared)
    for name, value in values(learner).items():
        if name != "shuffle_rng":
            assert torch.equal(value, expected[name]), name


def test_when_every_update_is_bad_nothing_moves_at_all() -> None:
    recorder = Recorder(lambda n, loss, parameters: spoilt(loss, parameters, "nan"))
    learner = make_learner(recorder, n_epochs=2)
    report = learner.learn(make_rollout(), version=0)
    assert report.skipped == 8
    assert report.metrics["train/n_updates"] == 0
    for name, parameter in make_parameters().items():
        assert torch.equal(learner.parameters[name], parameter)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert (learner.state()[f"{key}.{name}"] == 0).all()


def test_rows_that_came_to_nothing_move_nothing() -> None:
    """Not even by Adam's momentum: a server may be away for many rollouts."""
    none = make_rows()._replace(valid=torch.zeros(ROWS, dtype=torch.bool))
    learner = make_learner()
    learner.learn(make_rollout(), version=0)
    before = values(learner)
    learner.prepare = lambda rollout: Prepared(none, {})
    report = learner.learn(make_rollout(), version=0)
    after = values(learner)
    assert all(torch.equal(before[name], after[name]) for name in before if name != "shuffle_rng")
    assert report.skipped == 0, "nothing was wrong with the numbers"
    assert report.metrics["train/n_updates"] == 0


def test_schedules_fall_in_a_line_or_stay() -> None:
    learner = make_learner(
        learning_rate=0.4, lr_schedule="linear", clip_range=0.2, clip_schedule="constant"
    )
    for remaining, expected in ((1.0, 0.4), (0.75, 0.3), (0.5, 0.2), (0.0, 0.0)):
        learner.anneal(remaining)
        assert float(learner.learning_rate) == pytest.approx(expected)
        assert float(learner.clip_range) == pytest.approx(0.2)
    learner = make_learner(
        learning_rate=0.4, lr_schedule="constant", clip_range=0.2, clip_schedule="linear"
    )
    learner.anneal(0.25)
    assert float(learner.learning_rate) == pytest.approx(0.4)
    assert float(learner.clip_range) == pytest.approx(0.05)


def test_annealing_reaches_the_optimiser_the_loss_and_the_report() -> None:
    clips: list[float] = []

    def loss(parameters: Parameters, batch: Minibatch, clip: Tensor) -> Loss:
        clips.append(float(clip))
        return squared_error(parameters, batch, clip)

    learner = make_learner(
        loss, lr_schedule="linear", clip_schedule="linear", clip_range=0.2, learning_rate=1e-3
    )
    learner.anneal(0.5)
    report = learner.learn(make_rollout(), version=0)
    assert clips == [pytest.approx(0.1)] * 4
    assert report.metrics["train/clip_range"] == pytest.approx(0.1)
    assert report.metrics["train/learning_rate"] == pytest.approx(0.5e-3)
    before = values(learner)
    learner.anneal(0.0)
    assert report.metrics["train/learning_rate"] == pytest.approx(0.5e-3)  # a copy
    learner.learn(make_rollout(), version=1)
    for name in learner.parameters:
        assert torch.equal(learner.parameters[name], before[name])


def moved(learner: Learner, parameters: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.copy_(parameters[name])


def test_a_restored_learner_goes_on_with_the_same_bits() -> None:
    first, second = make_learner(seed=1, n_epochs=2), make_learner(seed=2, n_epochs=2)
    first.learn(make_rollout(), version=0)
    saved = values(first)
    second.learn(make_rollout(), version=0)  # restoring must undo whatever was done since
    moved(second, saved)
    second.restore(saved)
    assert same(values(second), saved)
    reports = [learner.learn(make_rollout(), version=1) for learner in (first, second)]
    assert same(reports[0].metrics, reports[1].metrics)
    assert same(values(first), values(second))
    assert not same(values(first), saved)


def test_a_learner_restored_to_before_its_first_update_begins_anew() -> None:
    """Adam's moments of what came after the checkpoint must not outlive the return to it."""
    first = make_learner(seed=1)
    saved = values(first)
    first.learn(make_rollout(), version=0)
    expected = values(first)
    moved(first, saved)
    first.restore(saved)
    first.learn(make_rollout(), version=0)
    assert same(values(first), expected)
