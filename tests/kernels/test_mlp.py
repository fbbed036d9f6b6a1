"""Small networks: the twins against the modules and autograd, the kernels against the twins."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from stoker.algos import ppo
from stoker.config.schema import NetworkSettings, PPOSettings
from stoker.kernels import mlp
from stoker.nn.actor_critic import ActorCritic, Evaluation
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec, Minibatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.usefixtures("triton")
INPUTS, STEPS = 5, 4
ACTIONS = {
    "discrete": ActionSpec("discrete", (), "int64", (4,), (0,)),
    "ragged": ActionSpec("multi_discrete", (3,), "int64", (3, 2, 5), (0, 0, 0)),
    "multi_binary": ActionSpec("multi_binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-1, -1), high=(1, 1)),
}
HEADS = {"discrete": "categorical", "ragged": "categorical", "multi_binary": "bernoulli"}


class Case(NamedTuple):
    """What a test is about, and how many rows of what it has."""

    action: str = "discrete"
    hidden: tuple[int, ...] = (20, 12)
    activation: str = "tanh"
    shared: bool = False
    agents: int = 1
    n: int = 6
    """Environments of an agent."""
    batch: int = 21
    """Rows of a minibatch."""
    scaled: bool = True
    normalize: bool = True
    clip_value: float | None = 0.1


CASES = [
    Case(),
    Case(action="ragged", hidden=(17,), agents=3),
    Case(action="box", hidden=(8, 33, 16), agents=3, normalize=False),
    Case(action="multi_binary", activation="silu", clip_value=None),
    Case(activation="relu", shared=True, hidden=(24,)),
    Case(activation="elu", action="box", shared=True, scaled=False, batch=16),
    Case(hidden=(9, 8, 7, 6), activation="silu", shared=True, n=3, batch=12, clip_value=None),
]
WITHOUT_TRUNK = [
    Case(hidden=(), agents=3, scaled=False),
    Case(hidden=(), action="box", shared=True, scaled=False, clip_value=None),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


class Setting(NamedTuple):
    """K agents as modules and as one buffer, and rows they could have stored."""

    policies: list[ActorCritic]
    net: mlp.Net
    flat: Tensor
    moments: mlp.Moments | None
    rows: mlp.Rows
    index: Tensor
    spread: Tensor
    terms: mlp.PpoTerms


def make_policy(case: Case, seed: int) -> ActorCritic:
    torch.manual_seed(seed)
    spec = EnvSpec("test", {PLAIN: LeafSpec("vector", (INPUTS,), "float32")}, ACTIONS[case.action])
    settings = NetworkSettings(
        network_arch=case.hidden or (INPUTS,),
        activation=case.activation,
        shared_trunk=case.shared,
        ortho_init=False,
        log_std_init=-0.3,
    )
    policy = ActorCritic(spec, settings, case.scaled)
    policy.seed(seed, torch.device("cpu"))
    for moments in policy.moments.values():
        moments.centre.normal_()
        moments.scale.uniform_(0.5, 20.0)  # such that some observations are cut off
    return policy


def parameters(case: Case, policy: ActorCritic) -> dict[str, nn.Parameter]:
    """Those that the net has; one without hidden layers begins behind the policy's trunks."""
    return {
        name: parameter
        for name, parameter in policy.named_parameters()
        if case.hidden or "trunk" not in name
    }


def apart(total: int) -> Tensor:
    """How far policies are from those that acted: far from where clipping begins, at 0.1.

    A product that is rounded may put a row on the other side there, which is another gradient.
    """
    drawn = 0.2 * torch.randn(total)
    return torch.where((drawn.abs() - 0.1).abs() < 0.03, drawn / 2, drawn)


def make(case: Case) -> Setting:
    policies = [make_policy(case, seed) for seed in range(case.agents)]
    first, action = policies[0], ACTIONS[case.action]
    net = mlp.layout(
        ((name, value.shape) for name, value in parameters(case, first).items()),
        INPUTS,
        case.hidden,
        case.activation,
        HEADS.get(case.action, "gaussian"),
        action.nvec,
        first.head.raw_width,
        case.shared,
    )
    flat = torch.stack(
        [nn.utils.parameters_to_vector(parameters(case, p).values()).detach() for p in policies]
    )
    moments = None
    if case.scaled:
        each = [p.moments["0"] for p in policies]
        moments = torch.stack([m.centre for m in each]), torch.stack([m.scale for m in each])
    total = STEPS * case.agents * case.n
    obs = torch.randn(total, INPUTS)
    action_rows, log_prob, worth = [], [], []
    for row in range(total):
        policy = policies[row // case.n % case.agents]
        out = policy.act({PLAIN: obs[row : row + 1]}, None, policy.draw_noise(1))
        action_rows.append(out.action)
        log_prob.append(out.log_prob)
        worth.append(policy.value({PLAIN: obs[row : row + 1]}))
    rows = mlp.Rows(
        obs,
        torch.cat(action_rows),
        torch.cat(log_prob) + apart(total),  # so that some ratios are clipped
        torch.randn(total) + 0.5,  # not around 0, where gradients of biases would cancel out
        torch.cat(worth) + apart(total),
    )
    rows.log_prob[:: 2 * case.n] = torch.cat(log_prob)[:: 2 * case.n]  # and some are 1
    local = torch.stack([torch.randperm(STEPS * case.n)[: case.batch] for _ in policies])
    agent = torch.arange(case.agents)[:, None]
    index = (local // case.n * case.agents + agent) * case.n + local % case.n
    spread = torch.stack(
        [
            torch.stack(
                [
                    part.new_tensor(part.shape[1]).expand(case.agents),
                    part.mean(1),
                    part.var(1, correction=0) * part.shape[1],
                ],
                -1,
            )
            for part in rows.advantage[index].split(8, 1)
        ],
        1,
    )
    terms = mlp.PpoTerms(
        torch.linspace(0.1, 0.2, case.agents),
        torch.linspace(0.01, 0.03, case.agents),
        torch.linspace(0.5, 0.7, case.agents),
        case.clip_value,
        case.normalize,
    )
    return Setting(policies, net, flat, moments, rows, index.int(), spread, terms)


def move(value: Any) -> Any:
    """Everything in `value` on the device that kernels run on."""
    if isinstance(value, Tensor):
        return value.to(DEVICE)
    if isinstance(value, tuple):
        moved = [move(part) for part in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    return value


def loss_of(now: Evaluation, case: Case, made: Setting, agent: int) -> Any:
    """What `ppo.loss` makes of an agent's minibatch."""
    row, terms = made.index[agent].long(), made.terms
    settings = PPOSettings(
        n_steps=1,
        batch_size=1,
        n_epochs=1,
        vf_coef=float(terms.value[agent]),
        ent_coef=float(terms.entropy[agent]),
        clip_range_vf=case.clip_value,
    )
    advantage, valid = made.rows.advantage[row], torch.ones(len(row), dtype=torch.bool)
    batch = Minibatch(
        obs={PLAIN: made.rows.obs},
        action=made.rows.action[row],
        action_mask=None,
        log_prob=made.rows.log_prob[row],
        importance=torch.ones(len(row)),
        value=made.rows.value[row],
        advantage=ppo.normalised(advantage, valid) if case.normalize else advantage,
        value_target=advantage + made.rows.value[row],
        valid=valid,
    )
    return ppo.loss(now, batch, terms.clip[agent], settings)


def agents_rows(case: Case, agent: int) -> Tensor:
    """The memory rows of an agent."""
    return torch.arange(STEPS * case.agents * case.n).view(STEPS, case.agents, -1)[:, agent]


def result(made: Setting, parts: int) -> tuple[Tensor, Tensor]:
    """Where a gradient and its measurements go; full of what must not stay."""
    agents, size = made.flat.shape
    return torch.full((agents, parts, size), 7.0), torch.full((agents, parts, 5), 7.0)


@each_case
def test_acting_is_what_the_modules_do(case: Case) -> None:
    made, rows = make(case), case.agents * case.n
    noise = torch.cat([policy.draw_noise(case.n) for policy in made.policies])
    action, log_prob = torch.empty_like(made.rows.action[:rows]), torch.empty(rows)
    mlp.act(made.net, made.flat, made.moments, made.rows.obs[:rows], noise, action, log_prob)
    for k, policy in enumerate(made.policies):
        mine = slice(k * case.n, (k + 1) * case.n)
        expected = policy.act({PLAIN: made.rows.obs[mine]}, None, noise[mine])
        torch.testing.assert_close(action[mine], expected.action)
        torch.testing.assert_close(log_prob[mine], expected.log_prob)


@each_case
def test_a_value_is_what_the_modules_say(case: Case) -> None:
    made = make(case)
    total = len(made.rows.obs)
    wanted, out = torch.arange(total) % 3 > 0, torch.full((total,), 7.0)
    mlp.value(made.net, made.flat, made.moments, made.rows.obs, wanted, out, case.n)
    for k, policy in enumerate(made.policies):
        mine = agents_rows(case, k).flatten()
        expected = policy.value({PLAIN: made.rows.obs[mine]}).masked_fill(~wanted[mine], 0.0)
        torch.testing.assert_close(out[mine], expected)


@each_case
def test_the_gradient_is_autograds_of_the_loss(case: Case) -> None:
    made = make(case)
    partial, measured = result(made, 3)
    mlp.gradient(
        made.net, made.flat, made.moments, made.rows, made.index, made.spread, made.terms,
        partial, measured,
    )  # fmt: skip
    for k, policy in enumerate(made.policies):
        row = made.index[k].long()
        loss = loss_of(
            policy({PLAIN: made.rows.obs[row]}, None, made.rows.action[row]), case, made, k
        )
        loss.total.backward()
        expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
        torch.testing.assert_close(partial[k].sum(0), expected, rtol=1e-4, atol=1e-6)
        assert_measured(measured[k].sum(0), loss.metrics)


def assert_measured(measured: Tensor, metrics: dict[str, Tensor]) -> None:
    names = ["policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"]
    expected = torch.stack([metrics[f"train/{name}"] for name in names])
    expected[2] *= -1
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-6)


def features_of(case: Case, made: Setting) -> Tensor:
    """What trunks could have made of each agent's minibatch: [1 or 2, K * B, inputs]."""
    return torch.randn(1 if case.shared else 2, case.agents * case.batch, INPUTS)


@pytest.mark.parametrize("case", WITHOUT_TRUNK, ids=str)
def test_without_a_trunk_the_features_have_a_gradient(case: Case) -> None:
    made = make(case)
    features = features_of(case, made)
    (partial, measured), d_features = result(made, 2), torch.full_like(features, 7.0)
    rows = made.rows._replace(obs=features)
    mlp.gradient(
        made.net, made.flat, None, rows, made.index, made.spread, made.terms,
        partial, measured, d_features=d_features,
    )  # fmt: skip
    for k, policy in enumerate(made.policies):
        mine = slice(k * case.batch, (k + 1) * case.batch)
        seen = features[:, mine].clone().requires_grad_()
        raw, worth = policy.decide(seen[0]), policy.judge(seen[-1]).squeeze(-1)
        measures = policy.head.measure(raw, None, made.rows.action[made.index[k].long()])
        loss = loss_of(Evaluation(*measures, worth), case, made, k)
        loss.total.backward()
        expected = torch.cat([p.grad.flatten() for p in parameters(case, policy).values()])
        torch.testing.assert_close(partial[k].sum(0), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(d_features[:, mine], seen.grad, rtol=1e-4, atol=1e-6)
        assert_measured(measured[k].sum(0), loss.metrics)


def behind_an_activation(case: Case) -> tuple[Setting, Tensor, Tensor]:
    """A setting whose rows have features, what was activated to make them, what of that is kept."""
    made = make(case)
    before = features_of(case, made)
    features = mlp.ACTIVATIONS[case.activation](before)
    size = made.net.size
    net = made.net._replace(
        actor=((-1, size),),
        critic=((-1, size if case.shared else size + INPUTS),),
        size=size + len(before) * INPUTS,
    )
    flat = nn.functional.pad(made.flat, (0, len(before) * INPUTS))
    made = made._replace(net=net, flat=flat, rows=made.rows._replace(obs=features))
    return made, before, before if case.activation == "silu" else features


@pytest.mark.parametrize("activation", list(mlp.ACTIVATIONS))
@pytest.mark.parametrize("case", WITHOUT_TRUNK, ids=str)
def test_a_gradient_goes_on_through_the_activation_below(case: Case, activation: str) -> None:
    case = case._replace(activation=activation)
    made, before, kept = behind_an_activation(case)
    (partial, measured), d_features = result(made, 2), torch.empty_like(before)
    mlp.gradient_twin(*made[1:], partial, measured, d_features)
    mlp.ACTIVATIONS[activation](before.requires_grad_()).backward(d_features)
    assert before.grad is not None
    mlp.gradient_twin(*made[1:], partial, measured, d_features, kept.detach())
    torch.testing.assert_close(d_features, before.grad)
    size = made.net.size
    d_bias = partial[..., size - len(before) * INPUTS :].sum(1).unflatten(1, (len(before), -1))
    by_agent = before.grad.unflatten(1, (case.agents, -1))
    torch.testing.assert_close(d_bias, by_agent.sum(2).transpose(0, 1))


def test_a_net_too_wide_does_not_fit() -> None:
    net = make(Case()).net
    assert mlp.fits(net)
    assert not mlp.fits(net._replace(inputs=257))
    assert not mlp.fits(net._replace(hidden=(129, 8)))
    assert not mlp.fits(net._replace(outputs=65))
    assert not mlp.fits(net._replace(activation="gelu"))


@needs_triton
@each_case
def test_the_kernel_acts_as_its_twin(case: Case) -> None:
    from stoker.kernels import mlp_on_gpu

    made, rows = make(case), case.agents * case.n
    noise = torch.cat([policy.draw_noise(case.n) for policy in made.policies])
    given = (made.net, made.flat, made.moments, made.rows.obs[:rows], noise)
    out = (torch.full_like(made.rows.action[:rows], 7), torch.full((rows,), 7.0))
    kernels, twins = move(out), tuple(part.clone() for part in out)
    mlp_on_gpu.act(*move(given), *kernels, "fp32")
    mlp.act_twin(*given, *twins)
    for kernel, twin in zip(kernels, twins, strict=True):
        torch.testing.assert_close(kernel.cpu(), twin, rtol=1e-5, atol=1e-5)


@needs_triton
@each_case
@pytest.mark.parametrize("some", [True, False])
def test_the_kernel_values_as_its_twin(case: Case, some: bool) -> None:
    from stoker.kernels import mlp_on_gpu

    made = make(case)
    total = len(made.rows.obs)
    wanted = torch.arange(total) == total - 1 if some else None  # most tiles have none
    given = (made.net, made.flat, made.moments, made.rows.obs, wanted)
    kernel, twin = torch.full((total,), 7.0, device=DEVICE), torch.full((total,), 7.0)
    launch = mlp_on_gpu.VALUE._replace(block=16)
    mlp_on_gpu.value(*move(given), kernel, case.n, "fp32", launch)
    mlp.value_twin(*given, twin, case.n)
    torch.testing.assert_close(kernel.cpu(), twin, rtol=1e-5, atol=1e-5)


def assert_each_near(made: Setting, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Each parameter's gradient, [K, P] of all: that of a small one must not hide behind others."""
    sizes = [parameter.numel() for parameter in made.policies[0].parameters()]
    least = 1e-3 * expected.norm()
    for one, other in zip(found.split(sizes, -1), expected.split(sizes, -1), strict=True):
        assert (one - other).norm() < tolerance * torch.maximum(other.norm(), least)


TOLERANCES = {"tf32": 3e-3, "bf16": 3e-2}


def kernels_gradient(
    made: Setting, parts: int, precision: str, kept: Tensor | None = None, *, block: int = 16
) -> Any:
    """Gradient, measurements and the features' gradient as the kernel has them."""
    from stoker.kernels import mlp_gradient_on_gpu

    partial, measured = move(result(made, parts))
    d_features = None if made.net.hidden else move(torch.full_like(made.rows.obs, 7.0))
    given = made[1:]
    mlp_gradient_on_gpu.gradient(
        *move(given),
        partial,
        measured,
        precision,
        d_features,
        move(kept),
        mlp_gradient_on_gpu.GRADIENT._replace(block=block),
    )
    return [part.cpu() for part in (partial, measured, d_features) if part is not None]


@needs_triton
@pytest.mark.parametrize("case", CASES + WITHOUT_TRUNK, ids=str)
def test_the_kernels_gradient_is_its_twins(case: Case) -> None:
    made = make(case)
    if not case.hidden:
        made = made._replace(rows=made.rows._replace(obs=features_of(case, made)))
    partial, measured = result(made, 1)
    d_features = None if case.hidden else torch.empty_like(made.rows.obs)
    mlp.gradient_twin(*made[1:], partial, measured, d_features)
    for parts in (1, 3):  # a tile or two a program, and a program without any
        found = kernels_gradient(made, parts, "fp32")
        torch.testing.assert_close(found[0].sum(1), partial.sum(1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found[1].sum(1), measured.sum(1), rtol=1e-4, atol=1e-6)
        if d_features is not None:
            torch.testing.assert_close(found[2], d_features, rtol=1e-4, atol=1e-6)


@needs_triton
@pytest.mark.gpu  # the interpreter rounds no products
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("hidden", [(20, 12), (64, 64), (128, 100)])
def test_less_precise_products_give_nearly_the_same_gradient(
    hidden: tuple[int, ...], precision: str
) -> None:
    made = make(Case(action="box", hidden=hidden, n=64, batch=200))
    partial, measured = result(made, 1)
    mlp.gradient_twin(*made[1:], partial, measured)
    rounded = kernels_gradient(made, 2, precision, block=64)[0].sum(1)
    assert_each_near(made, rounded, partial.sum(1), TOLERANCES[precision])


@needs_triton
@pytest.mark.parametrize("activation", ["tanh", "silu"])
@pytest.mark.parametrize("case", WITHOUT_TRUNK, ids=str)
def test_the_kernel_goes_on_through_the_activation_below(case: Case, activation: str) -> None:
    made, before, kept = behind_an_activation(case._replace(activation=activation))
    (partial, measured), d_features = result(made, 1), torch.empty_like(before)
    mlp.gradient_twin(*made[1:], partial, measured, d_features, kept)
    found = kernels_gradient(made, 3, "fp32", kept)
    torch.testing.assert_close(found[0].sum(1), partial.sum(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[2], d_features, rtol=1e-4, atol=1e-6)


@needs_triton
def test_the_same_rows_give_the_same_bits() -> None:
    made = make(Case(agents=3))
    first, second = (kernels_gradient(made, 2, "fp32") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
