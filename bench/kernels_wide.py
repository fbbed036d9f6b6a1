"""`python -m bench.kernels_wide`: what passes through wide networks cost on a GPU, part by part.

First the gradient against its twin, then whole passes as a training of 4,096 environments makes
them, then every layer with several tiles. Everything is timed as a CUDA graph.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from stoker.config.schema import NetworkSettings
from stoker.kernels import adam, linear_on_gpu, mlp, wide, wide_on_gpu
from stoker.kernels.adam import AdamTerms, Optimised
from stoker.kernels.linear import Precision, stored
from stoker.kernels.linear_first_on_gpu import backward_first
from stoker.kernels.linear_weight_on_gpu import backward_weight
from stoker.kernels.tiles_on_gpu import Tile
from stoker.nn.actor_critic import ActorCritic
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

ENVS, STEPS, BATCH, UPDATES = 4096, 32, 32768, 16
INPUTS, HIDDEN, CHOICES = 4, (1024, 512, 256), 2
ROWS = ENVS * STEPS
PRECISIONS: tuple[Precision, ...] = ("tf32", "bf16")
_INNER, _REPLAYS = 4, 9

Call = Callable[[], object]


def timed(call: Call) -> float:
    """Microseconds of one call in a graph."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_INNER):
            call()
    took = []
    for _ in range(_REPLAYS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) * 1000 / _INNER)
    return statistics.median(took[2:])


def told(name: str, choice: object, call: Call, flop: float = 0.0) -> float:
    """Time a call and print a line about it; None is the choice that is made without one."""
    if isinstance(choice, Tile):
        choice = "x".join(map(str, choice[:3])) + f", {choice.warps} warps, {choice.stages} stages"
    try:
        took = timed(call)
    except Exception as error:  # a tile that needs more than the chip has
        print(f"{name:34} {choice!s:32} {type(error).__name__}: {error!s:.60}", flush=True)
        return float("nan")
    speed = f"{flop / took / 1e6:7.1f} TFLOP/s" if flop else ""
    print(f"{name:34} {choice!s:32} {took:9.1f} us {speed}", flush=True)
    return took


class Scene:
    """A network, a rollout, and a minibatch of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        action = ActionSpec("discrete", (), "int64", (CHOICES,), (0,))
        spec = EnvSpec("bench", {PLAIN: LeafSpec("vector", (INPUTS,), "float32")}, action)
        policy = ActorCritic(spec, NetworkSettings(network_arch=HIDDEN), normalize_obs=True)
        self.parameters = [(name, value.shape) for name, value in policy.named_parameters()]
        self.net = mlp.layout(
            self.parameters,
            *(INPUTS, HIDDEN, "tanh", "categorical", (CHOICES,), CHOICES, False),
        )
        flat = nn.utils.parameters_to_vector(policy.parameters()).detach()[None]
        self.flat = flat.cuda()
        self.moments = torch.zeros(1, INPUTS).cuda(), torch.ones(1, INPUTS).cuda()
        noisy = partial(torch.randn, device="cuda")
        self.rows = mlp.Rows(
            noisy(ROWS, INPUTS),
            torch.randint(CHOICES, (ROWS, 1), device="cuda"),
            noisy(ROWS) * 0.1 - 0.7,
            noisy(ROWS),
            noisy(ROWS),
        )
        self.index = torch.randperm(ROWS, device="cuda")[None, :BATCH].int()
        chosen = self.rows.advantage[self.index.long()]
        squares = chosen.var(1, correction=0) * BATCH
        count = torch.full_like(squares, BATCH)
        self.spread = torch.stack([count, chosen.mean(1), squares], -1)[:, None]
        one = torch.ones(1, device="cuda")
        self.terms = mlp.PpoTerms(0.2 * one, 0.01 * one, 0.5 * one, None, True)
        self.optimised = Optimised.of(self.flat.clone())
        self.rates = AdamTerms(3e-4 * one, 0.01 * one, 0.5 * one, 0.5, 1e-5, float("inf"))
        self.gradient, self.measured = torch.empty_like(self.flat)[None], one.new_empty(1, 1, 5)

    def learn(self, precision: Precision) -> None:
        given = (self.net, self.flat, self.moments, self.rows, self.index, self.spread, self.terms)
        wide.gradient(*given, self.gradient, self.measured, precision)

    def update(self) -> None:
        adam.step(self.optimised, self.gradient, self.measured, self.rates)

    def act(self, precision: Precision) -> None:
        noise, action = torch.ones(ENVS, 1, CHOICES, device="cuda"), self.rows.action[:ENVS]
        given = (self.net, self.flat, self.moments, self.rows.obs[:ENVS], noise)
        wide.act(*given, torch.empty_like(action), self.flat.new_empty(ENVS), precision)

    def value(self, precision: Precision, wanted: Tensor | None) -> Tensor:
        out = self.flat.new_empty(ROWS)
        given = (self.net, self.flat, self.moments, self.rows.obs, wanted, out)
        wide.value(*given, ENVS, precision)
        return out


def check(scene: Scene, precision: Precision) -> None:
    """Print how far the kernels are from what they should compute."""
    torch.set_float32_matmul_precision("highest")
    expected, measured = torch.empty_like(scene.gradient), torch.empty_like(scene.measured)
    given = (scene.flat, scene.moments, scene.rows, scene.index, scene.spread, scene.terms)
    mlp.gradient_twin(scene.net, *given, expected, measured)
    worth, wanted = scene.flat.new_empty(ROWS), torch.rand(ROWS, device="cuda") < 0.1
    mlp.value_twin(scene.net, *given[:2], scene.rows.obs, wanted, worth, ENVS)
    torch.set_float32_matmul_precision("high")
    scene.gradient.fill_(float("nan"))
    scene.learn(precision)
    pairs = {
        "gradient": (scene.gradient, expected),
        "measured": (scene.measured, measured),
        "value": (scene.value(precision, wanted), worth),
    }
    at = 0
    for name, shape in scene.parameters:  # of some the gradient is small, and hides in the whole
        here = slice(at, at + shape.numel())
        pairs[name] = scene.gradient[..., here], expected[..., here]
        at = here.stop
    errors = {name: ((a - b).norm() / b.norm()).item() for name, (a, b) in pairs.items()}
    print(precision, "relative errors", {name: f"{e:.2e}" for name, e in errors.items()})


def whole(scene: Scene, precision: Precision) -> None:
    """The passes of an iteration, and what they add up to without environments."""
    few = torch.rand(ROWS, device="cuda") < 0.002
    took = {
        "act": told(f"{precision} act", ENVS, partial(scene.act, precision)),
        "value": told(f"{precision} value", ROWS, partial(scene.value, precision, None)),
        "finals": told(f"{precision} value", "0.2 %", partial(scene.value, precision, few)),
        "gradient": told(f"{precision} gradient", BATCH, partial(scene.learn, precision)),
        "update": told("adam", scene.net.size, scene.update),
    }
    counts = {"act": STEPS, "value": 1, "finals": 1, "gradient": UPDATES, "update": UPDATES}
    total = sum(took[name] * count for name, count in counts.items())
    print(f"{precision} iteration: {total / 1000:.2f} ms, {ROWS / total:.2f} M steps/s", flush=True)
    for name, choices, call in (
        ("VALUED_ROWS", (8192, 16384, 65536, ROWS), partial(scene.value, precision, None)),
        ("HEAD_NUMBERS", (4096, 16384), partial(scene.learn, precision)),
        ("HEAD_PARTS", (132, 264, 1024), partial(scene.learn, precision)),
        ("HEAD_WARPS", (4, 16), partial(scene.learn, precision)),
    ):
        default = getattr(wide_on_gpu, name)
        for choice in choices:
            setattr(wide_on_gpu, name, choice)
            told(f"{precision} {call.func.__name__}", f"{name} = {choice}", call)
        setattr(wide_on_gpu, name, default)


def tiles(precision: Precision) -> Iterable[Tile]:
    """Some to choose from; depths hold as many bytes in either precision."""
    depth = 64 if precision == "bf16" else 32
    for rows, columns, warps, stages in (
        (128, 256, 8, 3),
        (128, 256, 8, 4),
        (128, 128, 8, 4),
        (128, 128, 4, 3),
        (64, 256, 4, 4),
    ):
        yield Tile(rows, columns, depth, warps, stages)


def layers(precision: Precision) -> None:
    """Each layer of actor and critic, forward and back, with some tiles and the default."""

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda").mul_(0.1).to(stored(precision))

    choices = (None, *tiles(precision))
    smaller = (None, *choices[3:])
    for i, (inputs, outputs) in enumerate(pairwise((INPUTS, *HIDDEN))):
        name, flop = f"{precision} {inputs}-{outputs}", 4.0 * BATCH * inputs * outputs
        x = made(2, BATCH, inputs) if i else made(BATCH, inputs)
        weight, bias = made(2, outputs, inputs), torch.zeros(2, outputs, device="cuda")
        d_out, seen = made(2, BATCH, outputs), made(BATCH, INPUTS)
        forward = partial(linear_on_gpu.forward, x, weight, bias, "tanh", precision)
        for tile in choices if i else smaller:
            told(f"{name} forward", tile, partial(forward, tile), flop)
        d_weight = torch.empty(2, outputs, inputs, device="cuda")
        weigh = partial(backward_weight, d_out, x, precision, d_weight)
        told(f"{name} backward weight", "library", partial(weigh, "library"), flop)
        for tile in smaller[: 1 + min(i, 1)]:
            told(f"{name} backward weight", tile, partial(weigh, "kernel", tile), flop)
        d_bias = torch.empty(2, inputs, device="cuda")
        back = partial(linear_on_gpu.backward_input, d_out, weight, x, "tanh", precision, d_bias)
        for tile in choices if i else ():
            told(f"{name} backward input", tile, partial(back, tile), flop)
        d_first = torch.empty(2, inputs, INPUTS, device="cuda")
        first = partial(backward_first, d_out, weight, x, seen, "tanh", precision, d_first, d_bias)
        for tile in choices if i == 1 else ():
            told(f"{name} backward first", tile, partial(first, tile), flop)


def main() -> None:
    scene = Scene()
    for precision in PRECISIONS:
        check(scene, precision)
        whole(scene, precision)
    for precision in PRECISIONS:
        layers(precision)


if __name__ == "__main__":
    main()
