"""Layers of several networks: twins against autograd, kernels against their twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from stoker.kernels import linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
ACTIVATIONS, PRECISIONS = get_args(linear.Activation), get_args(linear.Precision)
TOLERANCE = (
    {"fp32": 1e-5, "tf32": 2**-8, "bf16": 1e-2}
    if DEVICE == "cuda"
    else {"fp32": 1e-5, "tf32": 1e-5, "bf16": 2e-2}
)
"""By precision, the largest error over the largest number. TF32 cuts both factors off after ten
binary places, and the tanh beside it is right to eleven. Triton's interpreter knows no tf32, and
cuts numbers off to bfloat16 where a GPU rounds them."""
SHAPES = [(1, 1, 1, 1), (1, 64, 16, 32), (2, 67, 4, 40), (2, 33, 83, 6), (2, 130, 64, 65)]
BULKY = [(2, 130, 64, 72), (1, 300, 96, 136), (2, 67, 40, 272)]
SHAPES += BULKY
"""Networks, rows, inputs, outputs; those that are bulky are for a chip's copy engine."""
each_shape = pytest.mark.parametrize(
    ("activation", "precision", "shape"),
    [
        (ACTIVATIONS[(i + j) % len(ACTIVATIONS)], precision, shape)
        for i, precision in enumerate(PRECISIONS)
        for j, shape in enumerate(SHAPES)
    ],
)
"""Every precision with every shape, and every activation with every precision."""
PAIRS: list[tuple[Any, Any, bool, int | None]] = [
    ("tanh", "fp32", False, None),
    ("relu", "fp32", True, 21),
    ("elu", "fp32", False, None),
    ("silu", "fp32", False, 21),
    ("tanh", "tf32", False, None),
    ("elu", "tf32", True, 21),
    ("tanh", "bf16", True, 21),
    ("silu", "bf16", True, None),
    ("relu", "bf16", False, None),
]
"""Activation, precision, whether networks share what they see, limit: every two of them meet."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def layer(
    networks: int, rows: int, inputs: int, outputs: int, precision: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`x`, `weight`, `bias`, `d_out` and `kept` of the layer below, as a precision stores them."""
    stored = linear.stored(precision)
    x = numbers(networks, rows, inputs).to(stored)
    weight = (numbers(networks, outputs, inputs, seed=1) / inputs**0.5).to(stored)
    bias = numbers(networks, outputs, seed=2)
    d_out = numbers(networks, rows, outputs, seed=3).to(stored)
    return x, weight, bias, d_out, numbers(networks, rows, inputs, seed=4).tanh().to(stored)


def assert_near(actual: Tensor, expected: Tensor, precision: str) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    error = (actual.double() - expected.double()).abs().max()
    assert error <= TOLERANCE[precision] * expected.double().abs().max().clamp(min=1.0)


@pytest.fixture
def kernels() -> Any:
    pytest.importorskip("triton")
    from stoker.kernels import linear_on_gpu

    return linear_on_gpu


def back(*given: Any, tile: Any = None) -> tuple[Tensor, Tensor]:
    """What `backward_input` gives back, and what it writes."""
    from stoker.kernels.linear_on_gpu import backward_input

    weight = given[1]
    d_bias = torch.full(weight.shape[::2], float("nan"), device=DEVICE)
    return backward_input(*given, d_bias, tile), d_bias


def weigh(d_out: Tensor, x: Tensor, precision: Any, **how: Any) -> Tensor:
    """What `backward_weight` writes."""
    from stoker.kernels.linear_weight_on_gpu import backward_weight

    out = torch.full((*d_out.shape[::2], x.shape[-1]), float("nan"), device=DEVICE)
    return backward_weight(d_out, x, precision, out, **how)


@pytest.fixture
def small(kernels: Any) -> Any:
    """A tile that even a small result has many of, in bands that do not divide them."""
    return kernels.Tile(rows=16, columns=16, depth=16, warps=4, stages=2, band=3)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_twins_are_what_autograd_makes_of_modules(
    activation: Any, precision: Any, shared: bool
) -> None:
    torch.manual_seed(0)
    inputs, hidden, outputs, rows = 5, 12, 7, 30
    networks = [
        nn.Sequential(
            nn.Linear(inputs, hidden),
            MODULES[activation](),
            nn.Linear(hidden, outputs),
            MODULES[activation](),
        ).to(DEVICE)
        for _ in range(2)
    ]
    x = numbers(rows, inputs) if shared else numbers(2, rows, inputs)
    d_result = numbers(2, rows, outputs, seed=1)
    weights, biases = (
        [torch.stack([getattr(n[i], kind).detach() for n in networks]) for i in (0, 2)]
        for kind in ("weight", "bias")
    )
    expected = torch.stack([n(x if shared else x[g]) for g, n in enumerate(networks)])
    expected.backward(d_result)

    first = linear.forward_twin(x, weights[0], biases[0], activation, precision)
    second = linear.forward_twin(first.out, weights[1], biases[1], activation, precision)
    d_second = d_result * linear.derivative(second.kept.float(), activation)
    d_first, d_bias = linear.backward_input_twin(
        d_second, weights[1], first.kept, activation, precision
    )
    gradients = [
        (linear.backward_weight_twin(d_first, x, precision), d_bias),
        (linear.backward_weight_twin(d_second, first.out, precision), d_second.sum(1)),
    ]

    assert_near(second.out.float(), expected.detach(), precision)
    for i, found in zip((0, 2), gradients, strict=True):
        for kind, gradient in zip(("weight", "bias"), found, strict=True):
            wanted = torch.stack([getattr(n[i], kind).grad for n in networks])
            assert_near(gradient, wanted, precision)


@each_shape
def test_forward_is_its_twin(kernels: Any, activation: Any, precision: Any, shape: Any) -> None:
    x, weight, bias, _, _ = layer(*shape, precision)
    found = kernels.forward(x, weight, bias, activation, precision)
    expected = linear.forward_twin(x, weight, bias, activation, precision)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, precision)
    assert (found[0] is found[1]) == (activation != "silu")


@each_shape
def test_backward_input_is_its_twin(
    kernels: Any, activation: Any, precision: Any, shape: Any
) -> None:
    _, weight, _, d_out, kept = layer(*shape, precision)
    found = back(d_out, weight, kept, activation, precision)
    expected = linear.backward_input_twin(d_out, weight, kept, activation, precision)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, precision)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", ["kernel", "library"])
def test_backward_weight_is_its_twin(kernels: Any, way: Any, precision: Any, shape: Any) -> None:
    x, _, _, d_out, _ = layer(*shape, precision)
    found = weigh(d_out, x, precision, way=way)
    assert_near(found, linear.backward_weight_twin(d_out, x, precision), precision)


@pytest.mark.parametrize(("precision", "shape"), list(zip(PRECISIONS * 3, SHAPES, strict=False)))
def test_left_to_choose_its_way_it_is_its_twin(kernels: Any, precision: Any, shape: Any) -> None:
    x, _, _, d_out, _ = layer(*shape, precision)
    expected = linear.backward_weight_twin(d_out, x, precision)
    assert_near(weigh(d_out, x, precision), expected, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_many_small_tiles_make_up_the_whole(kernels: Any, small: Any, precision: Any) -> None:
    x, weight, bias, d_out, kept = layer(2, 67, 20, 50, precision)
    found = kernels.forward(x, weight, bias, "tanh", precision, small)
    assert_near(found[0], linear.forward_twin(x, weight, bias, "tanh", precision).out, precision)
    found = back(d_out, weight, kept, "tanh", precision, tile=small)
    expected = linear.backward_input_twin(d_out, weight, kept, "tanh", precision)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, precision)
    d_weight = weigh(d_out, x, precision, way="kernel", tile=small)
    assert_near(d_weight, linear.backward_weight_twin(d_out, x, precision), precision)


@pytest.mark.parametrize("way", ["kernel", "library"])
@pytest.mark.parametrize("splits", [1, 2, 8])
def test_shares_of_the_rows_add_up(kernels: Any, small: Any, way: Any, splits: int) -> None:
    x, _, _, d_out, _ = layer(2, 96, 40, 20, "fp32")
    for given in (x, x[0]):
        found = weigh(d_out, given, "fp32", way=way, tile=small, splits=splits)
        assert_near(found, linear.backward_weight_twin(d_out, given, "fp32"), "fp32")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_networks_may_share_what_they_see(kernels: Any, precision: Any) -> None:
    """In float32 as it comes, whatever the precision."""
    _, weight, bias, d_out, _ = layer(2, 40, 9, 24, precision)
    x = numbers(40, 9, seed=5)
    out, _ = kernels.forward(x, weight, bias, "tanh", precision)
    assert_near(out, linear.forward_twin(x, weight, bias, "tanh", precision).out, precision)
    for way in ("kernel", "library"):
        found = weigh(d_out, x, precision, way=way)
        assert_near(found, linear.backward_weight_twin(d_out, x, precision), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_parameters_may_lie_apart(kernels: Any, precision: Any) -> None:
    x, weight, bias, d_out, kept = layer(2, 40, 18, 24, precision)
    apart, size = 1000, 24 * 18
    flat = torch.full((2 * apart,), float("nan"), device=DEVICE)
    flat.view(2, apart)[:, :size] = weight.flatten(1).float()
    flat.view(2, apart)[:, size : size + 24] = bias
    spread = flat.to(weight.dtype).as_strided(weight.shape, (apart, 18, 1))
    spread_bias = flat.as_strided(bias.shape, (apart, 1), size)
    out, _ = kernels.forward(x, spread, spread_bias, "elu", precision)
    assert_near(out, linear.forward_twin(x, weight, bias, "elu", precision).out, precision)
    d_in, _ = back(d_out, spread, kept, "elu", precision)
    wanted, _ = linear.backward_input_twin(d_out, weight, kept, "elu", precision)
    assert_near(d_in, wanted, precision)


def test_rows_may_lie_apart(kernels: Any) -> None:
    x, weight, bias, d_out, kept = layer(2, 40, 18, 24, "fp32")
    wide_x, wide_d_out = torch.cat([x, x], dim=2), torch.cat([d_out, d_out], dim=2)
    x, d_out, kept = wide_x[..., 18:], wide_d_out[..., 24:], kept.mT.contiguous().mT
    out, _ = kernels.forward(x, weight, bias, "tanh", "fp32")
    assert_near(out, linear.forward_twin(x, weight, bias, "tanh", "fp32").out, "fp32")
    found = (*back(d_out, weight, kept, "tanh", "fp32"), weigh(d_out, x, "fp32"))
    expected = linear.backward_input_twin(d_out, weight, kept, "tanh", "fp32")
    expected += (linear.backward_weight_twin(d_out, x, "fp32"),)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, "fp32")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_a_few_programs_bring_and_take_many_blocks(
    kernels: Any, small: Any, monkeypatch: Any, activation: Any, precision: Any
) -> None:
    from stoker.kernels import linear_bulk_on_gpu

    monkeypatch.setattr(linear_bulk_on_gpu, "PROCESSORS", 3)
    x, weight, bias, d_out, kept = layer(2, 67, 48, 40, precision)
    assert linear_bulk_on_gpu.usable(precision, x, weight)
    found = linear_bulk_on_gpu.forward(x, weight, bias, activation, precision, small)
    for one, other in zip(
        found, linear.forward_twin(x, weight, bias, activation, precision), strict=True
    ):
        assert_near(one, other, precision)
    weight = kernels.along_depth(weight, precision)
    d_in, sums = linear_bulk_on_gpu.backward_input(
        d_out, weight, kept, activation, precision, small
    )
    wanted, d_bias = linear.backward_input_twin(d_out, weight, kept, activation, precision)
    assert_near(d_in, wanted, precision)
    assert_near(sums.sum(1), d_bias, precision)


def test_what_the_copy_engine_cannot_bring_is_left_to_others(kernels: Any) -> None:
    from stoker.kernels.linear_bulk_on_gpu import usable

    x, weight, _, d_out, kept = layer(2, 67, 48, 40, "bf16")
    assert usable("bf16", x, weight)
    assert usable("bf16", d_out, weight, kept)
    assert not usable("fp32", x.float(), weight.float())
    assert not usable("bf16", x[:1].expand(2, -1, -1), weight), "the same rows for all"
    assert not usable("bf16", x[..., 1:33], weight[..., 1:33]), "between two places to begin at"
    assert not usable("bf16", x[..., :36], weight[..., :36]), "results that are no whole rows"


@pytest.mark.parametrize(("activation", "precision", "shared"), [way[:3] for way in PAIRS])
def test_a_first_layers_gradients_are_the_twins(
    kernels: Any, small: Any, activation: Any, precision: Any, shared: bool
) -> None:
    from stoker.kernels.linear_first_on_gpu import backward_first

    _, weight, _, d_out, kept = layer(2, 67, 40, 24, precision)
    x = numbers(67, 4, seed=7) if shared else numbers(2, 67, 4, seed=7)
    d_middle, d_bias = linear.backward_input_twin(d_out, weight, kept, activation, precision)
    expected = linear.backward_weight_twin(d_middle, x, precision), d_bias
    for tile in (None, small):
        room = torch.full((2, 300), 7.0, device=DEVICE)
        found = room[:, :160].unflatten(1, (40, 4)), room[:, 160:200]
        backward_first(d_out, weight, kept, x, activation, precision, *found, tile)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, precision)
        assert (room[:, 200:] == 7.0).all()


@pytest.mark.parametrize(("activation", "precision", "shared", "limit"), PAIRS)
def test_a_first_layers_outputs_are_the_twins(
    kernels: Any, activation: Any, precision: Any, shared: bool, limit: int | None
) -> None:
    from stoker.kernels.linear_first_on_gpu import forward_first

    x, weight, bias, _, _ = layer(2, 67, 5, 300, precision)
    x = x[0] if shared else x
    place = None if limit is None else torch.tensor(limit, dtype=torch.int32, device=DEVICE)
    found = forward_first(x, weight, bias, activation, precision, place)
    expected = linear.forward_twin(x, weight, bias, activation, precision)
    for one, other in zip(found, expected, strict=True):
        assert_near(one[:, :limit], other[:, :limit], precision)


@pytest.mark.parametrize("limit", [0, 16, 21, 100])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_rows_past_a_limit_are_left_alone(
    kernels: Any, small: Any, activation: Any, limit: int
) -> None:
    x, weight, bias, _, _ = layer(2, 40, 18, 24, "fp32")
    x[:, limit:] = float("nan")
    place = torch.full((), limit, dtype=torch.int32, device=DEVICE)
    found = kernels.forward(x, weight, bias, activation, "fp32", small, place)
    expected = linear.forward_twin(x, weight, bias, activation, "fp32")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:, :limit], other[:, :limit])


@pytest.mark.parametrize("way", ["kernel", "library"])
def test_a_weights_gradient_goes_where_it_is_wanted(kernels: Any, way: Any) -> None:
    from stoker.kernels.linear_weight_on_gpu import backward_weight

    x, _, _, d_out, _ = layer(2, 40, 18, 24, "fp32")
    room = torch.full((2, 1000), 7.0, device=DEVICE)
    out = room[:, 5 : 5 + 24 * 18].unflatten(1, (24, 18))
    backward_weight(d_out, x, "fp32", out, way)
    assert_near(out, linear.backward_weight_twin(d_out, x, "fp32"), "fp32")
    assert (room[:, :5] == 7.0).all()
    assert (room[:, 5 + 24 * 18 :] == 7.0).all()


@pytest.mark.parametrize(
    ("parts", "groups", "size"), [(1, 1, 1), (3, 2, 1100), (600, 2, 40), (256, 1, 33)]
)
def test_parts_are_summed(kernels: Any, parts: int, groups: int, size: int) -> None:
    from stoker.kernels.sums_on_gpu import summed

    given = numbers(groups, parts, size + 3).transpose(0, 1)[..., 3:]
    room = torch.full((groups, size + 5), 7.0, device=DEVICE)
    summed(given, room[:, :size])
    assert_near(room[:, :size], given.double().sum(0).float(), "fp32")
    assert (room[:, size:] == 7.0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_no_number_is_not_hidden(kernels: Any, activation: Any, precision: Any) -> None:
    x, weight, bias, _, _ = layer(1, 20, 8, 16, precision)
    x[0, 3, 5] = float("nan")
    out, _ = kernels.forward(x, weight, bias, activation, precision)
    assert out[0, 3].isnan().all()
    assert out.isnan().sum() == 16


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_numbers_saturate(kernels: Any, activation: Any) -> None:
    """Past 88 an exponential is infinite in float32."""
    x = torch.tensor([[-1e4], [-100.0], [-0.5], [0.0], [0.5], [100.0], [1e4]], device=DEVICE)
    one = torch.ones(1, 1, 1, device=DEVICE)
    out, _ = kernels.forward(x, one, one[0] * 0, activation, "fp32")
    torch.testing.assert_close(out[0], MODULES[activation]()(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "splits"),
    [(32768, 512, 1024, 4), (32768, 256, 512, 16), (96, 16, 16, 32), (33, 512, 1024, 1)],
)
def test_shares_for_the_library_are_equal(
    kernels: Any, rows: int, outputs: int, inputs: int, splits: int
) -> None:
    from stoker.kernels import linear_weight_on_gpu

    assert linear_weight_on_gpu._library_splits(2, rows, outputs, inputs) == splits


def test_tiles_are_chosen_by_shape(kernels: Any) -> None:
    large, *_, smallest = kernels.TILES["bf16"]
    assert kernels.fitting(None, "bf16", 2, 32768, 1024, 512) == large
    few = kernels.fitting(None, "bf16", 1, 100, 64, 512)
    assert few == smallest
    shallow = kernels.fitting(None, "bf16", 2, 32768, 1024, 4)
    assert (shallow.rows, shallow.columns, shallow.depth) == (128, 128, 16)


def test_a_small_chip_gets_smaller_tiles(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    for kilobytes in (227, 99, 64, 16):
        monkeypatch.setattr(kernels, "_room", lambda held=kilobytes: held * 1024)
        tile = kernels.fitting(None, "bf16", 2, 32768, 1024, 512)
        chosen.append((tile.rows, tile.columns))
    assert chosen == [(128, 256), (128, 128), (64, 64), (64, 64)]


def all_of(of: Callable[..., Any], *given: Any) -> list[Tensor]:
    found = of(*given)
    return [found] if isinstance(found, Tensor) else list(found)


@pytest.mark.gpu
@pytest.mark.parametrize(("inputs", "outputs"), [(4, 1024), (400, 1024), (1024, 512), (512, 256)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_wide_layers_on_a_gpu_are_their_twins_and_repeat_their_bits(
    kernels: Any, precision: Any, inputs: int, outputs: int
) -> None:
    from stoker.kernels import linear_first_on_gpu

    x, weight, bias, d_out, kept = layer(2, 4100, inputs, outputs, precision)
    narrow = inputs <= linear_first_on_gpu.MOST_ADDED
    forward = linear_first_on_gpu.forward_first if narrow else kernels.forward
    cases = [
        (forward, linear.forward_twin, (x, weight, bias, "tanh", precision)),
        (back, linear.backward_input_twin, (d_out, weight, kept, "tanh", precision)),
        (weigh, linear.backward_weight_twin, (d_out, x, precision)),
    ]
    for kernel, twin, given in cases:
        found, again, expected = (all_of(of, *given) for of in (kernel, kernel, twin))
        for one, repeated, other in zip(found, again, expected, strict=True):
            assert torch.equal(one, repeated)
            assert_near(one, other, precision)
