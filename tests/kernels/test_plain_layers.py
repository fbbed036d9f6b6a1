"""Layers by hand against autograd, and an update of a flat buffer against one of its parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from stoker.kernels.descent import Descent, FlatDescent
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
    with torch.no_grad():
        plain = PlainLayers(layers, activation)
        torch.testing.assert_close(plain.forward(rows), expected)
        plain.backward(weight)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


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
