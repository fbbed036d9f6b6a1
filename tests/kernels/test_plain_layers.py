"""Layers by hand against autograd, and an update of a flat buffer against one of its parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from stoker.kernels.descent import Descent, FlatDescent, flushing_denormals
from stoker.kernels.plain_layers import ACTIVATIONS, PlainLayers


def make_layers(*sizes: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(wide, narrow) for wide, narrow in pairwise(sizes)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(4, 2), (4, 8, 2), (4, 16, 8, 3)])
def test_the_gradient_is_autograds_over_the_first_rows(
    activation: str, sizes: tuple[int, ...]
) -> None:
    layers = make_layers(*sizes)
    rows, weight = torch.randn(10, 4), torch.randn(6, sizes[-1])
    act = {"relu": torch.relu, "tanh": torch.tanh}[activation]
    hidden = rows
    for layer in layers[:-1]:
        hidden = act(layer(hidden))
    expected = layers[-1](hidden)
    (expected[:6] * weight).sum().backward()
    parameters = [p for layer in layers for p in layer.parameters()]
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 7.0)  # what was there is gone
    plain, out = PlainLayers(layers, activation, rows=10, learned=6), torch.empty(10, sizes[-1])
    with torch.no_grad():
        for _ in range(2):  # what lies between the layers is used again
            plain.forward(rows, out)
            torch.testing.assert_close(out, expected)
            plain.slope.copy_(weight)
            plain.backward()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 8, 9])
def test_any_number_of_rows_is_judged(number: int) -> None:
    layers, rows = make_layers(4, 8, 2), torch.randn(number, 4)
    plain = PlainLayers(layers, "tanh", rows=4)
    with torch.no_grad():
        expected = layers[1](torch.tanh(layers[0](rows)))
        torch.testing.assert_close(plain.judge(rows), expected)


def test_denormals_are_flushed_only_meanwhile() -> None:
    tiny = torch.tensor([1e-40])
    for outside in (False, True):
        torch.set_flush_denormal(outside)
        try:
            with flushing_denormals():
                assert (tiny * 1.0).item() == 0.0
            assert ((tiny * 1.0).item() == 0.0) is outside
        finally:
            torch.set_flush_denormal(False)


def test_a_quick_step_is_one_with_the_gradient_clipped() -> None:
    """By autograd's optimiser, for gradients that are shorter and longer than they may be."""
    parameters = dict(nn.Sequential(*make_layers(3, 5, 2)).named_parameters())
    copies = [nn.Parameter(p.detach().clone()) for p in parameters.values()]
    descent = FlatDescent(parameters, 1e-8, 0.5)
    adam = torch.optim.Adam(copies, lr=0.01, eps=1e-8)
    for size in (0.01, 1.0, 0.1, 3.0):
        for copy, parameter in zip(copies, parameters.values(), strict=True):
            copy.grad = size * torch.randn_like(copy)
            assert isinstance(parameter.grad, Tensor)
            parameter.grad.copy_(copy.grad)
        expected = nn.utils.clip_grad_norm_(copies, 0.5)
        adam.step()
        with torch.no_grad():
            assert descent.move(torch.tensor(0.01)) == pytest.approx(float(expected), rel=1e-5)
        for copy, parameter in zip(copies, parameters.values(), strict=True):
            torch.testing.assert_close(parameter, copy)


def test_a_flat_buffer_is_updated_as_its_parts_are() -> None:
    """Also where an update is not allowed, or not finite; and state goes from one to the other."""
    apart, flat = (dict(nn.Sequential(*make_layers(3, 5, 2)).named_parameters()) for _ in range(2))
    descents = Descent(apart, 1e-5, 0.5), FlatDescent(flat, 1e-5, 0.5)
    rate, metrics = torch.tensor(0.01), {"one": torch.ones(())}
    generator = torch.Generator().manual_seed(1)
    for number in range(6):
        for descent in descents:
            descent.forget()
        for name, parameter in apart.items():
            gradient = torch.randn(parameter.shape, generator=generator)
            if number == 3:
                gradient[0] = torch.nan
            parameter.grad = gradient.clone()
            held = flat[name].grad
            assert isinstance(held, Tensor)
            held += gradient
        for descent in descents:
            descent.step(rate, torch.ones(()), metrics, torch.tensor(number != 1))
    for name, parameter in apart.items():
        torch.testing.assert_close(parameter, flat[name])
    first, second = descents
    assert first.state.keys() == second.state.keys()
    for name, value in first.state.items():
        torch.testing.assert_close(value, second.state[name])
    assert [float(d.made) for d in descents] == [4, 4]
    assert [float(d.skipped) for d in descents] == [1, 1]
    assert float(second.means()["one"]) == 1
    second.restore({name: value + 1 for name, value in first.state.items()})
    assert all(torch.equal(second.state[name], value + 1) for name, value in first.state.items())
