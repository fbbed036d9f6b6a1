"""How an update runs: whatever the path, the same figures, and nobody's parameters touched."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.func import functional_call

from stoker.algos import ppo
from stoker.config.schema import NetworkSettings, PPOSettings
from stoker.learn.executor import executable
from stoker.nn.actor_critic import ActorCritic
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec, Loss, LossFunction, Minibatch

CLIP = torch.tensor(0.2)
ROWS = 16


def make_batch(seed: int) -> Minibatch:
    random = torch.Generator().manual_seed(seed)
    return Minibatch(
        obs={PLAIN: torch.randn(ROWS, 3, generator=random)},
        action=torch.randint(4, (ROWS, 1), generator=random),
        action_mask=None,
        log_prob=torch.randn(ROWS, generator=random) / 5 - 1.4,
        importance=torch.rand(ROWS, generator=random) * (torch.arange(ROWS) % 5 != 0),
        value=torch.randn(ROWS, generator=random),
        advantage=torch.randn(ROWS, generator=random),
        value_target=torch.randn(ROWS, generator=random),
        valid=torch.arange(ROWS) % 5 != 0,
    )


def make_policy() -> ActorCritic:
    leaf, action = LeafSpec("vector", (3,), "float32"), ActionSpec("discrete", (), "int64", (4,))
    torch.manual_seed(0)
    spec = EnvSpec("test", {PLAIN: leaf}, action)
    return ActorCritic(spec, NetworkSettings(network_arch=(8,)), normalize_obs=True)


def ppo_loss(policy: ActorCritic) -> LossFunction:
    """PPO's, with a metric that tells whether it ran compiled."""
    settings = PPOSettings(n_steps=1, batch_size=ROWS, n_epochs=1, ent_coef=0.01)
    buffers = dict(policy.named_buffers())

    def loss(parameters: Mapping[str, Tensor], batch: Minibatch, clip: Tensor) -> Loss:
        arguments = (batch.obs, batch.action_mask, batch.action)
        found = ppo.loss(
            functional_call(policy, {**parameters, **buffers}, arguments), batch, clip, settings
        )
        compiled = torch.full((), float(torch.compiler.is_compiling()))
        return Loss(found.total, found.approx_kl, {**found.metrics, "compiled": compiled})

    return loss


def check_equal(
    run: LossFunction, eager: LossFunction, parameters: Mapping[str, Tensor], batch: Minibatch
) -> None:
    """The same loss, metrics and gradients within 1e-5, one compiled and one not."""
    results = []
    for function in (run, eager):
        loss = function(parameters, batch, CLIP)
        gradients = torch.autograd.grad(loss.total, list(parameters.values()))
        metrics = {k: v for k, v in loss.metrics.items() if k != "compiled"}
        results.append((loss.total.detach(), loss.approx_kl, metrics, gradients))
        assert loss.metrics["compiled"] == (function is run)
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def train(loss: LossFunction, start: Mapping[str, Tensor]) -> list[Tensor]:
    """Where thirty of the learner's kind of updates lead from `start`."""
    parameters = {name: nn.Parameter(p.detach().clone()) for name, p in start.items()}
    optimiser = torch.optim.Adam(parameters.values(), lr=torch.tensor(0.01), fused=True)
    for seed in range(30):
        optimiser.zero_grad()
        loss(parameters, make_batch(seed), CLIP).total.backward()
        optimiser.found_inf = torch.tensor(float(seed % 3 == 0))
        optimiser.step()
    return [p.detach() for p in parameters.values()]


def wait_for_the_build() -> None:
    for thread in threading.enumerate():
        if thread.name == "stoker-compile":
            thread.join(timeout=120)
            assert not thread.is_alive()


def test_compiled_updates_equal_eager_ones_in_the_foreground_and_behind() -> None:
    """One test for both, since a compiler is slow: the second finds its kernels in the cache."""
    policy = make_policy()
    parameters, eager = dict(policy.named_parameters()), ppo_loss(policy)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    with inductor.patch(compile_threads=1):
        check_equal(executable(eager, "compile", "foreground"), eager, parameters, make_batch(0))

        torch.compiler.reset()
        behind = executable(eager, "compile", "background")
        alone = train(eager, parameters)
        behind(parameters, make_batch(1), CLIP)
        beside = train(eager, parameters)
        wait_for_the_build()
        assert all(map(torch.equal, beside, alone))
        assert all(parameter.grad is None for parameter in parameters.values())
        assert all(torch.equal(p, before[name]) for name, p in parameters.items())
        # The policy still holds its own parameters, and nothing is compiled a second time.
        assert all(p is parameters[name] for name, p in policy.named_parameters())
        with torch.compiler.set_stance("fail_on_recompile"):
            check_equal(behind, eager, parameters, make_batch(2))


def line(parameters: Mapping[str, Tensor], batch: Minibatch, clip: Tensor) -> Loss:
    total = (batch.obs[PLAIN] @ parameters["weight"] * clip).sum()
    return Loss(total, total.detach(), {})


@pytest.fixture
def parameters() -> dict[str, nn.Parameter]:
    return {"weight": nn.Parameter(torch.ones(3))}


def pretend(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled)


def test_eager_is_the_loss_itself() -> None:
    assert executable(line, "eager", "background") is line


def test_behind_the_eager_path_runs_until_the_other_is_built(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, nn.Parameter]
) -> None:
    built, ran = threading.Event(), []

    def compiled(*arguments: Any) -> Loss:
        if threading.current_thread().name == "stoker-compile":
            assert built.wait(timeout=60)
        ran.append(threading.current_thread().name)
        return line(*arguments)

    pretend(monkeypatch, compiled)
    run = executable(line, "compile", "background")
    for _ in range(3):
        run(parameters, make_batch(0), CLIP)
    assert ran == []
    built.set()
    wait_for_the_build()
    run(parameters, make_batch(0), CLIP)
    assert ran == ["stoker-compile", "MainThread"]


def test_batches_of_another_size_are_built_for_behind_the_eager_path(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, nn.Parameter]
) -> None:
    """Else whoever learns would wait for the compiler once the parts are smaller."""
    called, ran = threading.Event(), list[tuple[str, int]]()

    def compiled(*arguments: Any) -> Loss:
        assert called.wait(timeout=60)
        ran.append((threading.current_thread().name, len(arguments[1].valid)))
        return line(*arguments)

    pretend(monkeypatch, compiled)
    run = executable(line, "compile", "background")
    whole = make_batch(0)
    for batch in (whole, whole.take(slice(0, 5))):
        called.clear()
        run(parameters, batch, CLIP)
        called.set()
        wait_for_the_build()
    assert ran == [("stoker-compile", ROWS), ("stoker-compile", 5)]
    for batch in (whole, whole.take(slice(5, 10))):
        run(parameters, batch, CLIP)
    assert ran[2:] == [("MainThread", ROWS), ("MainThread", 5)]


def test_the_build_works_on_copies(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, nn.Parameter]
) -> None:
    """It runs backward, and may do worse: neither parameters nor batch may be the run's own."""

    def careless(given: Mapping[str, Tensor], batch: Minibatch, clip: Tensor) -> Loss:
        assert isinstance(given["weight"], nn.Parameter)
        loss = line(given, batch, clip)
        if threading.current_thread().name != "stoker-compile":  # built already: the run's own call
            return loss
        with torch.no_grad():
            for tensor in (given["weight"], batch.obs[PLAIN], batch.valid, clip):
                tensor.zero_()
        return loss._replace(total=given["weight"].sum())

    pretend(monkeypatch, careless)
    batch, clip = make_batch(0), CLIP.clone()
    executable(line, "compile", "background")(parameters, batch, clip)
    wait_for_the_build()
    assert torch.equal(parameters["weight"], torch.ones(3))
    assert parameters["weight"].grad is None
    assert torch.equal(batch.obs[PLAIN], make_batch(0).obs[PLAIN])
    assert batch.valid.any()
    assert clip == CLIP


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("no compiler\nfound anywhere"), "(RuntimeError: no compiler)"),
        (AssertionError(), "(AssertionError: )"),
    ],
)
def test_a_build_that_fails_warns_and_leaves_the_eager_path(
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, nn.Parameter],
) -> None:
    def compiled(*arguments: Any) -> Loss:
        raise error

    pretend(monkeypatch, compiled)
    run = executable(line, "compile", "background")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(parameters, make_batch(0), CLIP)
        wait_for_the_build()
    assert [said in str(warning.message) for warning in caught] == [True]
    expected = line(parameters, make_batch(0), CLIP).total
    torch.testing.assert_close(run(parameters, make_batch(0), CLIP).total, expected)
