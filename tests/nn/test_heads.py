"""Action distributions against torch.distributions, and their samples against their odds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal

from stoker.nn.heads import BernoulliHead, CategoricalHead, GaussianHead, Head, make_head
from stoker.types import ActionSpec

ROWS = 50
DRAWS = 20_000

NVECS = {"discrete": (4,), "even": (3, 3), "ragged": (2, 5, 1, 3)}
each_nvec = pytest.mark.parametrize("nvec", NVECS.values(), ids=NVECS.keys())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw(head: Head, raw: Tensor, mask: Tensor | None = None, seed: int = 3) -> Tensor:
    """Actions, whose log-probability must be the one that `measure` gives them."""
    noise = head.draw_noise(len(raw), torch.Generator().manual_seed(seed))
    action, log_prob = head.sample(raw, mask, noise)
    torch.testing.assert_close(log_prob, head.measure(raw, mask, action)[0], rtol=0, atol=0)
    return action


def allowed(nvec: tuple[int, ...], rows: int, seed: int = 5) -> Tensor:
    """A random mask that leaves at least one choice of every column."""
    random = torch.Generator().manual_seed(seed)
    columns = []
    for n in nvec:
        column = torch.rand(rows, n, generator=random) < 0.5
        column[torch.arange(rows), torch.randint(n, (rows,), generator=random)] = True
        columns.append(column)
    return torch.cat(columns, dim=1)


def column_distributions(
    nvec: tuple[int, ...], raw: Tensor, mask: Tensor | None = None
) -> list[Categorical]:
    """One torch distribution a column, impossible choices at minus infinity."""
    logits = raw if mask is None else raw.masked_fill(~mask, -math.inf)
    return [Categorical(logits=part) for part in logits.split(nvec, dim=1)]


def entropy_of(distribution: Categorical) -> Tensor:
    p = distribution.probs
    return -torch.special.xlogy(p, p).sum(-1)


def check_frequencies(found: Tensor, expected: Tensor) -> None:
    """Counts of DRAWS draws within five deviations of a binomial's."""
    deviation = (DRAWS * expected * (1 - expected)).sqrt().clamp(min=1.0)
    assert ((found - DRAWS * expected).abs() < 5 * deviation).all(), (found, DRAWS * expected)


@each_nvec
@pytest.mark.parametrize("masked", [False, True])
def test_categorical_measures_as_torch_does(nvec: tuple[int, ...], masked: bool) -> None:
    head, raw = CategoricalHead(nvec), 2 * normal(ROWS, sum(nvec))
    mask = allowed(nvec, ROWS) if masked else None
    action = draw(head, raw, mask)
    log_prob, entropy = head.measure(raw, mask, action)
    columns = column_distributions(nvec, raw, mask)
    expected = sum(d.log_prob(action[:, i]) for i, d in enumerate(columns))
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, sum(entropy_of(d) for d in columns))


@each_nvec
@pytest.mark.parametrize("masked", [False, True])
def test_categorical_draws_as_often_as_it_should(nvec: tuple[int, ...], masked: bool) -> None:
    head, raw = CategoricalHead(nvec), normal(1, sum(nvec), seed=1)
    mask = allowed(nvec, 1) if masked else None
    everywhere = None if mask is None else mask.expand(DRAWS, -1)
    action = draw(head, raw.expand(DRAWS, -1), everywhere)
    assert action.shape == (DRAWS, len(nvec))
    for column, distribution in enumerate(column_distributions(nvec, raw, mask)):
        counts = torch.bincount(action[:, column], minlength=nvec[column])
        check_frequencies(counts, distribution.probs[0])


def test_the_columns_of_a_multi_discrete_action_are_independent() -> None:
    head, raw = CategoricalHead((2, 3)), normal(1, 5, seed=1)
    action = draw(head, raw.expand(DRAWS, -1))
    first, second = (d.probs[0] for d in column_distributions((2, 3), raw))
    counts = torch.bincount(action[:, 0] * 3 + action[:, 1], minlength=6)
    check_frequencies(counts, torch.outer(first, second).flatten())


@each_nvec
def test_what_is_masked_is_never_drawn_however_much_the_policy_wants_it(
    nvec: tuple[int, ...],
) -> None:
    mask = allowed(nvec, DRAWS)
    head, raw = CategoricalHead(nvec), torch.where(mask, -100.0, 100.0)
    for action in (draw(head, raw, mask), head.greedy(raw, mask)):
        start = torch.tensor([0, *nvec[:-1]]).cumsum(0)
        assert mask.gather(1, start + action).all()


@each_nvec
def test_masked_choices_have_no_gradient_and_the_others_a_finite_one(nvec: tuple[int, ...]) -> None:
    head, mask = CategoricalHead(nvec), allowed(nvec, ROWS)
    raw = normal(ROWS, sum(nvec)).requires_grad_()
    log_prob, entropy = head.measure(raw, mask, draw(head, raw.detach(), mask))
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), raw)
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).any()


@each_nvec
def test_categorical_gradient_equals_torchs(nvec: tuple[int, ...]) -> None:
    head, raw = CategoricalHead(nvec), normal(ROWS, sum(nvec)).requires_grad_()
    action = draw(head, raw.detach())
    log_prob, entropy = head.measure(raw, None, action)
    columns = column_distributions(nvec, raw)
    expected = sum(d.log_prob(action[:, i]) + d.entropy() for i, d in enumerate(columns))
    (found,) = torch.autograd.grad((log_prob + entropy).sum(), raw)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), raw)[0])


def test_an_action_with_one_allowed_choice_is_certain() -> None:
    head, mask = CategoricalHead((3,)), torch.tensor([[False, True, False]])
    log_prob, entropy = head.measure(normal(1, 3), mask, torch.tensor([[1]]))
    assert log_prob == 0.0
    assert entropy == 0.0


@each_nvec
def test_categorical_greedy_is_each_columns_best(nvec: tuple[int, ...]) -> None:
    raw = normal(ROWS, sum(nvec))
    best = torch.stack([part.argmax(1) for part in raw.split(nvec, dim=1)], dim=1)
    torch.testing.assert_close(CategoricalHead(nvec).greedy(raw, None), best)


def test_bernoulli_measures_as_torch_does() -> None:
    head, raw = BernoulliHead(4), 3 * normal(ROWS, 4)
    action = draw(head, raw)
    log_prob, entropy = head.measure(raw, None, action)
    coins = Bernoulli(logits=raw)
    torch.testing.assert_close(log_prob, coins.log_prob(action.float()).sum(-1))
    torch.testing.assert_close(entropy, coins.entropy().sum(-1))


def test_bernoulli_draws_as_often_as_it_should() -> None:
    head, raw = BernoulliHead(4), torch.tensor([[-3.0, -0.5, 0.0, 2.0]])
    action = draw(head, raw.expand(DRAWS, -1))
    assert action.dtype == torch.int64
    check_frequencies(action.sum(0), raw[0].sigmoid())
    torch.testing.assert_close(head.greedy(raw, None), torch.tensor([[0, 0, 0, 1]]))


def test_a_certain_coin_has_a_finite_gradient() -> None:
    head, raw = BernoulliHead(2), torch.tensor([[-200.0, 200.0]], requires_grad=True)
    log_prob, entropy = head.measure(raw, None, torch.tensor([[0, 1]]))
    assert log_prob == 0.0
    assert entropy == 0.0
    assert torch.autograd.grad((log_prob + entropy).sum(), raw)[0].isfinite().all()


def gaussian(*log_std: float) -> GaussianHead:
    head = GaussianHead(len(log_std), 0.0)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor(log_std))
    return head


def test_gaussian_measures_as_torch_does() -> None:
    head, raw = gaussian(-1.0, 0.0, 0.7), normal(ROWS, 3)
    action = draw(head, raw).detach()
    log_prob, entropy = head.measure(raw, None, action)
    bells = Normal(raw, head.log_std.exp())
    torch.testing.assert_close(log_prob, bells.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy, bells.entropy().sum(-1))


def test_gaussian_draws_around_its_mean_with_its_deviation() -> None:
    head, raw = gaussian(-1.0, 0.7), torch.tensor([[5.0, -2.0]])
    action = draw(head, raw.expand(DRAWS, -1)).detach()
    deviation = torch.tensor([-1.0, 0.7]).exp()
    mean_error = (action.mean(0) - raw[0]).abs() / deviation * math.sqrt(DRAWS)
    spread_error = (action.std(0) / deviation - 1).abs() * math.sqrt(2 * DRAWS)
    assert (mean_error < 5).all()
    assert (spread_error < 5).all()
    assert abs(float(torch.corrcoef(action.T)[0, 1])) * math.sqrt(DRAWS) < 5
    torch.testing.assert_close(head.greedy(raw, None), raw)


def test_the_deviation_of_a_gaussian_is_learned() -> None:
    head = gaussian(0.0)
    log_prob, entropy = head.measure(torch.zeros(1, 1), None, torch.full((1, 1), 2.0))
    by_log_prob, by_entropy = (torch.autograd.grad(x, head.log_std)[0] for x in (log_prob, entropy))
    assert by_log_prob == pytest.approx(2.0**2 - 1)
    assert by_entropy == pytest.approx(1.0)


@pytest.mark.parametrize("head", [CategoricalHead((3, 2)), BernoulliHead(3), gaussian(0.0, 1.0)])
def test_sampling_is_a_pure_function_of_its_noise(head: Head) -> None:
    raw = normal(ROWS, head.raw_width)
    noise = head.draw_noise(ROWS, torch.Generator().manual_seed(1))
    other = head.draw_noise(ROWS, torch.Generator().manual_seed(2))
    again, _ = head.sample(raw, None, noise.clone())
    assert torch.equal(head.sample(raw, None, noise)[0], again)
    assert not torch.equal(head.sample(raw, None, other)[0], again)


@pytest.mark.parametrize(
    ("spec", "kind", "raw_width"),
    [
        (ActionSpec("discrete", (), "int64", (5,), (0,)), CategoricalHead, 5),
        (ActionSpec("multi_discrete", (2,), "int64", (3, 4), (0, 0)), CategoricalHead, 7),
        (ActionSpec("multi_binary", (2, 3), "int8"), BernoulliHead, 6),
        (ActionSpec("box", (2, 2), "float32", low=(-1,) * 4, high=(1,) * 4), GaussianHead, 4),
    ],
)
def test_every_action_space_has_its_head(
    spec: ActionSpec, kind: type[Head], raw_width: int
) -> None:
    head = make_head(spec, log_std_init=-0.5)
    assert isinstance(head, kind)
    assert head.raw_width == raw_width
    assert draw(head, normal(7, raw_width)).shape == (7, spec.width)
    if isinstance(head, GaussianHead):
        torch.testing.assert_close(head.log_std.detach(), torch.full((4,), -0.5))
