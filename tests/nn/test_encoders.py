"""Encoders: every kind of leaf, alone and in a dict."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stoker.errors import SpaceError
from stoker.nn.encoders import Encoder, mlp
from stoker.types import LeafSpec


def image_leaf(*shape: int, channels_last: bool = True) -> LeafSpec:
    return LeafSpec("image", shape, "uint8", channels_last=channels_last)


def vector_leaf(*shape: int) -> LeafSpec:
    return LeafSpec("vector", shape, "float32")


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, (5, *shape), dtype=torch.uint8)


def encoder(**leaves: LeafSpec) -> Encoder:
    torch.manual_seed(0)
    return Encoder(leaves, (8,), "tanh")


def bare(**leaves: LeafSpec) -> Encoder:
    """An encoder that shows what its trunk is given."""
    made = encoder(**leaves)
    made.trunk = nn.Sequential(nn.Identity())
    return made


@pytest.mark.parametrize("side", [5, 12, 36, 40])
def test_an_image_reads_the_same_wherever_its_channels_are(side: int) -> None:
    last = encoder(picture=image_leaf(side, side + 2, 3))
    first = encoder(picture=image_leaf(3, side, side + 2, channels_last=False))
    picture = images(side, side + 2, 3)
    expected = last({"picture": picture})
    torch.testing.assert_close(first({"picture": picture.movedim(-1, 1)}), expected)
    swapped = first({"picture": picture.flip(-1).movedim(-1, 1)})
    assert not torch.allclose(swapped, expected)


@pytest.mark.parametrize("side", [8, 36])
def test_a_grey_image_needs_no_channel_axis(side: int) -> None:
    flat, deep = encoder(picture=image_leaf(side, side)), encoder(picture=image_leaf(side, side, 1))
    picture = images(side, side)
    torch.testing.assert_close(flat({"picture": picture}), deep({"picture": picture[..., None]}))


def test_pixels_are_scaled_to_1() -> None:
    made = encoder(picture=image_leaf(8, 8))
    seen: list[Tensor] = []
    convolutions = made.images["leaf_picture"].convolutions
    convolutions.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    made({"picture": torch.full((1, 8, 8), 255, dtype=torch.uint8)})
    torch.testing.assert_close(seen[0], torch.ones(1, 1, 8, 8))


def test_an_image_too_small_to_convolve_is_refused_with_its_size() -> None:
    with pytest.raises(SpaceError, match="4 x 9 pixels"):
        encoder(picture=image_leaf(4, 9, 3))


def test_a_category_is_one_hot() -> None:
    made = bare(kind=LeafSpec("discrete", (), "int64", n=4))
    torch.testing.assert_close(made({"kind": torch.tensor([2, 0, 3])}), torch.eye(4)[[2, 0, 3]])


def test_vectors_are_flattened_and_a_scalar_is_a_vector_of_one() -> None:
    made = bare(table=vector_leaf(2, 3), scalar=vector_leaf())
    table, scalar = torch.arange(12.0).reshape(2, 2, 3), torch.tensor([100.0, 200.0])
    expected = torch.tensor([[0.0, 1, 2, 3, 4, 5, 100], [6, 7, 8, 9, 10, 11, 200]])
    torch.testing.assert_close(made({"table": table, "scalar": scalar}), expected)


def test_a_dict_is_joined_in_the_order_of_its_space() -> None:
    made = bare(b=vector_leaf(1), a=vector_leaf(2), c=LeafSpec("discrete", (), "int64", n=2))
    obs = {"a": torch.tensor([[1.0, 2.0]]), "c": torch.tensor([1]), "b": torch.tensor([[9.0]])}
    torch.testing.assert_close(made(obs), torch.tensor([[9.0, 1.0, 2.0, 0.0, 1.0]]))


@pytest.mark.parametrize("leaves", [("vector",), ("image",), ("discrete",), ("vector", "image")])
def test_any_leaves_give_features_of_the_last_layers_width(leaves: tuple[str, ...]) -> None:
    kinds = {
        "vector": (vector_leaf(3), torch.zeros(5, 3)),
        "image": (image_leaf(6, 6, 3), images(6, 6, 3)),
        "discrete": (LeafSpec("discrete", (), "int64", n=4), torch.zeros(5, dtype=torch.int64)),
    }
    made = Encoder({name: kinds[name][0] for name in leaves}, (16, 7), "relu")
    assert made({name: kinds[name][1] for name in leaves}).shape == (5, 7)


def test_leaf_names_may_hold_what_module_names_may_not() -> None:
    """Each has its own weights, however alike the names look once dots are replaced."""
    names = ("a.b", "a_dot_b", "a__dot__b", "a..b", "", "forward")
    made = encoder(**dict.fromkeys(names, image_leaf(6, 6)))
    assert len(made.images) == len(names)
    picture = images(6, 6)
    obs = dict.fromkeys(names, picture)
    expected = made(obs)
    for name in names:
        assert not torch.allclose(made({**obs, name: 255 - picture}), expected), name


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_an_mlp_is_linear_layers_each_followed_by_its_activation(activation: str) -> None:
    layers = mlp((3, 5, 2), activation)
    x = torch.randn(4, 3)
    function = getattr(torch.nn.functional, activation)
    expected = function(layers[2](function(layers[0](x))))
    torch.testing.assert_close(layers(x), expected)
    assert sum(p.numel() for p in layers.parameters()) == (3 * 5 + 5) + (5 * 2 + 2)
