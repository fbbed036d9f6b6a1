"""Adam over a flat buffer: against torch's own, and the kernels against their twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stoker.kernels import adam
from stoker.kernels.adam import AdamTerms, Optimised

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def terms(agents: int, most: float = 0.5, kl: float = float("inf"), at: str = DEVICE) -> AdamTerms:
    rate = torch.linspace(1e-3, 3e-3, agents, device=at)
    return AdamTerms(rate, torch.full_like(rate, 0.01), torch.full_like(rate, 0.5), most, 1e-5, kl)


def given(agents: int, parts: int, size: int, at: str = DEVICE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    gradient = torch.randn(agents, parts, size, generator=generator)
    measured = torch.rand(agents, parts, 5, generator=generator) / parts
    return gradient.to(at), measured.to(at)


def begun(agents: int, size: int, at: str = DEVICE) -> Optimised:
    flat = torch.randn(agents, size, generator=torch.Generator().manual_seed(1))
    return Optimised.of(flat.to(at))


@pytest.mark.parametrize("most", [0.5, 1e9])
def test_it_is_torchs_adam_for_every_agent(most: float) -> None:
    ours, settings = begun(3, 40, "cpu"), terms(3, most, at="cpu")
    theirs = [nn.Parameter(row.clone()) for row in ours.flat]
    optimisers = [
        torch.optim.Adam([row], lr=rate.item(), eps=1e-5)
        for row, rate in zip(theirs, settings.rate, strict=True)
    ]
    for seed in range(20):
        gradient, measured = given(3, 4, 40 + seed, "cpu")
        gradient = gradient[..., :40].contiguous()
        adam.step_twin(ours, gradient, measured, settings)
        for row, parts, optimiser in zip(theirs, gradient, optimisers, strict=True):
            row.grad = parts.sum(0)
            nn.utils.clip_grad_norm_([row], most)
            optimiser.step()
    for mine, row in zip(ours.flat, theirs, strict=True):
        torch.testing.assert_close(mine, row.detach(), rtol=1e-5, atol=1e-6)
    assert ours.made.tolist() == [20] * 3
    assert (ours.counts == 20).all()


def test_what_is_measured_is_summed_over_the_updates_made() -> None:
    ours, settings = begun(2, 8, "cpu"), terms(2, at="cpu")
    gradient, measured = given(2, 3, 8, "cpu")
    for _ in range(2):
        adam.step_twin(ours, gradient, measured, settings)
    policy_loss, value_loss, entropy, kl, clipped = measured.sum(1).unbind(1)
    total = policy_loss + 0.5 * value_loss - 0.01 * entropy
    norm = gradient.sum(1).norm(dim=1)
    expected = torch.stack((total, policy_loss, value_loss, -entropy, kl, clipped, norm), 1)
    torch.testing.assert_close(ours.tally, 2 * expected)
    ours.begin()
    assert not any(counter.any() for counter in (ours.tally, ours.made, ours.skipped))


@pytest.mark.parametrize("bad", ["gradient", "loss", "kl"])
def test_an_update_that_must_not_be_made_is_not_and_its_neighbours_are(bad: str) -> None:
    ours, settings = begun(3, 2000), terms(3, kl=1.0)
    gradient, measured = given(3, 2, 2000)
    adam.step(ours, gradient, measured, settings)
    before = [field.clone() for field in ours]
    if bad == "gradient":
        gradient[1, 1, 1500] = torch.nan
    elif bad == "loss":
        measured[1, 0, 0] = torch.inf
    else:
        measured[1, 0, 3] = 1.6
    adam.step(ours, gradient, measured, settings)
    for now, then in zip(ours[:4], before[:4], strict=True):
        assert torch.equal(now[1], then[1])
        assert not torch.equal(now[0], then[0])
        assert not torch.equal(now[2], then[2])
    assert ours.stopped.tolist() == [False, bad == "kl", False]
    assert ours.skipped.tolist() == [0, int(bad != "kl"), 0]
    assert ours.made.tolist() == [2, 1, 2]
    if bad == "kl":
        measured[1, 0, 3] = 0.0
        adam.step(ours, gradient, measured, settings)
        assert torch.equal(ours.flat[1], before[0][1]), "it has stopped for this rollout"
        ours.begin()
        adam.step(ours, gradient, measured, settings)
        assert not torch.equal(ours.flat[1], before[0][1])


@pytest.mark.parametrize(
    ("agents", "parts", "size"), [(1, 1, 5), (1, 150, 3000), (3, 7, 1025), (1, 2, 70_000)]
)
def test_the_kernels_do_what_their_twin_does(agents: int, parts: int, size: int) -> None:
    adam_on_gpu = pytest.importorskip("stoker.kernels.adam_on_gpu", reason="needs Triton")
    ours, theirs = begun(agents, size), begun(agents, size)
    settings = terms(agents, kl=0.9)
    for seed in range(3):
        gradient, measured = given(agents, parts, size + seed)
        gradient = gradient[..., :size].contiguous()
        adam_on_gpu.step(ours, gradient, measured, settings)
        adam.step_twin(theirs, gradient, measured, settings)
        for mine, twin in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, twin, rtol=1e-4, atol=1e-6)


def test_of_parameters_that_lie_apart_it_is_torchs_to_the_bit() -> None:
    rng = torch.Generator().manual_seed(1)
    shapes = {"a": (5, 3), "b": (3,), "c": ()}
    ours = {n: torch.nn.Parameter(torch.randn(s, generator=rng)) for n, s in shapes.items()}
    theirs = {n: torch.nn.Parameter(p.detach().clone()) for n, p in ours.items()}
    rate = torch.tensor(0.01)
    mine = adam.Adam(ours, 1e-5)
    reference = torch.optim.Adam(theirs.values(), lr=rate, eps=1e-5, fused=True)
    for number in range(6):
        for name, parameter in ours.items():
            parameter.grad = torch.randn(shapes[name], generator=rng)
            theirs[name].grad = parameter.grad.clone()
        skip = torch.tensor(float(number == 3))
        reference.found_inf = skip  # type: ignore[attr-defined]
        mine.step(rate, skip)
        reference.step()
        assert all(torch.equal(ours[name], theirs[name]) for name in shapes)
    for name, parameter in theirs.items():
        for key, value in reference.state[parameter].items():
            assert torch.equal(mine.state[f"{key}.{name}"], value)
    assert int(mine.state["step.a"]) == 5
