"""Scans over time: the twin against its definition, the kernel against the twin, bit by bit."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from rollouts import judged
from torch import Tensor

from stoker.algos.returns import gae
from stoker.kernels import scan

SHAPES = [(1, 1), (2, 3), (7, 32), (64, 33), (384, 32), (33, 4096)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("steps", "n"), SHAPES[:5])
def test_backward_is_its_definition(steps: int, n: int) -> None:
    addend, factor = numbers(steps, n), numbers(steps, n, seed=1).sigmoid()
    expected, running = torch.empty(steps, n, dtype=torch.float64), torch.zeros(n)
    for t in reversed(range(steps)):
        running = addend[t].double() + factor[t].double() * running
        expected[t] = running
    torch.testing.assert_close(scan.backward(addend, factor), expected.float())


@pytest.mark.parametrize(("steps", "n"), SHAPES[:5])
def test_forward_is_its_definition(steps: int, n: int) -> None:
    addend, keep, carried = numbers(steps, n), numbers(steps, n, seed=1).sigmoid(), numbers(n)
    expected, running = torch.empty(steps, n, dtype=torch.float64), carried.double()
    for t in range(steps):
        expected[t] = addend[t].double() + running
        running = keep[t].double() * expected[t]
    sums, left = scan.forward(addend, keep, carried)
    torch.testing.assert_close(sums, expected.float())
    torch.testing.assert_close(left, running.float())


def rollout(steps: int, n: int) -> tuple[Tensor, ...]:
    """Rewards, values, what ended and how, V where truncated, V after the last step."""
    terminated, truncated = numbers(steps, n, seed=2) > 1, numbers(steps, n, seed=3) > 1
    reward, value, final_value = (numbers(steps, n, seed=seed) for seed in (4, 5, 6))
    return reward, value, terminated, truncated, final_value, numbers(n, seed=7)


@pytest.mark.parametrize(("steps", "n"), SHAPES[:5])
def test_advantages_are_those_of_rollouts_without_gaps(steps: int, n: int) -> None:
    *rows, last_value = rollout(steps, n)
    whole = judged(*rows, torch.ones(steps, n, dtype=torch.bool), last_value)
    expected = gae(whole, whole.reward, 0.97, 0.9)
    found = scan.advantages(*rows, last_value, 0.97, 0.9)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(("steps", "n"), SHAPES[:4])
def test_the_kernels_advantages_are_its_twins(steps: int, n: int) -> None:
    from stoker.kernels import scan_on_gpu

    given = rollout(steps, n)
    expected = scan.advantages_twin(*given, 0.97, 0.9)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = scan_on_gpu.advantages(*(each.to(device) for each in given), 0.97, 0.9)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)


def test_without_triton_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "stoker.kernels.scan_on_gpu", raising=False)
    monkeypatch.delattr("stoker.kernels.scan_on_gpu", raising=False)
    scan._kernels.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"Triton cannot build kernels here .*plain torch"):
            assert scan._kernels() is None
    finally:
        scan._kernels.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "n"), SHAPES)
def test_the_kernels_give_the_bits_of_their_twins(steps: int, n: int) -> None:
    addend, keep, carried = numbers(steps, n), numbers(steps, n, seed=1).sigmoid(), numbers(n)
    addend, keep, carried = addend.cuda(), keep.cuda(), carried.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # else the twin would be compared with itself
        backward, (sums, left) = scan.backward(addend, keep), scan.forward(addend, keep, carried)
    assert torch.equal(backward, scan.backward_twin(addend, keep))
    expected, expected_left = scan.forward_twin(addend, keep, carried)
    assert torch.equal(sums, expected)
    assert torch.equal(left, expected_left)


@pytest.mark.gpu
def test_the_kernels_take_slices() -> None:
    wide = numbers(20, 10).cuda()
    some = wide[:, 2:7]
    assert torch.equal(scan.backward(some, some), scan.backward_twin(some, some))
