"""Wide networks: against the modules and autograd on the CPU, the kernels against `mlp`'s twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_mlp import Case, Setting, assert_each_near, loss_of, make, move, result
from torch import Tensor

from stoker.kernels import mlp, wide
from stoker.types import PLAIN

needs_triton = pytest.mark.usefixtures("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = [
    Case(hidden=(40, 24, 16)),
    Case(action="ragged", hidden=(17,), scaled=False),
    Case(action="box", hidden=(33, 20), normalize=False, activation="silu"),
    Case(action="multi_binary", hidden=(20, 36), activation="relu", clip_value=None),
    Case(action="box", hidden=(24, 12), activation="elu", shared=True),
    Case(hidden=(24,), activation="silu", shared=True, batch=16),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
TOO_WIDE = Case(hidden=(300, 150))


def taught(made: Setting, of: Any = wide.gradient) -> tuple[Tensor, Tensor]:
    """The gradient of a minibatch, and what was measured of it."""
    partial, measured = result(made, 1)
    of(*made[1:], partial, measured)
    return partial, measured


def test_what_is_too_wide_for_one_kernel_is_valued_as_the_modules_do() -> None:
    made, (policy,) = make(TOO_WIDE), make(TOO_WIDE).policies
    assert not mlp.fits(made.net)
    out = torch.full((len(made.rows.obs),), 7.0)
    wide.value(*made[1:4], made.rows.obs, None, out, TOO_WIDE.n)
    torch.testing.assert_close(out, policy.value({PLAIN: made.rows.obs}), rtol=1e-4, atol=1e-5)


def test_what_is_too_wide_for_one_kernel_learns_by_autograds_gradient() -> None:
    made = make(TOO_WIDE)
    (policy,), row = made.policies, made.index[0].long()
    now = policy({PLAIN: made.rows.obs[row]}, None, made.rows.action[row])
    loss_of(now, TOO_WIDE, made, 0).total.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    torch.testing.assert_close(taught(made)[0][0, 0], expected, rtol=1e-4, atol=1e-6)


def test_what_small_networks_do_is_the_same() -> None:
    made, rows = make(CASES[0]), CASES[0].n
    assert mlp.fits(made.net)
    for mine, other in zip(taught(made), taught(made, mlp.gradient), strict=True):
        torch.testing.assert_close(mine, other)
    noise = made.policies[0].draw_noise(rows)
    drawn = []
    for module in (wide, mlp):
        out = torch.empty_like(made.rows.action[:rows]), torch.empty(rows)
        module.act(*made[1:4], made.rows.obs[:rows], noise, *out)
        drawn.append(out)
    for mine, other in zip(*drawn, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_net_must_end_in_what_one_program_holds() -> None:
    net = make(Case()).net
    assert wide.fits(net._replace(inputs=4096, hidden=(1024, 512, 256), outputs=64))
    assert wide.fits(net._replace(hidden=(4096, 512), outputs=32))
    assert not wide.fits(net._replace(hidden=(4096, 512), outputs=33))
    assert not wide.fits(net._replace(hidden=(1024,)))
    assert not wide.fits(net._replace(inputs=4097))
    assert not wide.fits(net._replace(hidden=()))
    assert not wide.fits(net._replace(activation="gelu"))


def test_the_head_lies_behind_the_trunks() -> None:
    made = make(CASES[4])
    start, head = wide.head_of(made.net)
    named = dict(made.policies[0].named_parameters())
    assert start == sum(p.numel() for name, p in named.items() if "trunk" in name)
    here = made.flat[0, start:]
    for name, place in (("decide.bias", head.decide[1]), ("head.log_std", head.log_std)):
        parameter = named[name].detach()
        torch.testing.assert_close(here[place : place + parameter.numel()], parameter)
    assert not wide.fits(made.net._replace(decide=(0, 10)))


@needs_triton
@each_case
def test_the_kernels_act_as_the_twin(case: Case) -> None:
    from stoker.kernels import wide_on_gpu

    made, rows = make(case), case.n
    noise = made.policies[0].draw_noise(rows)
    given = (*made[1:4], made.rows.obs[:rows], noise)
    out = (torch.full_like(made.rows.action[:rows], 7), torch.full((rows,), 7.0))
    kernels, twins = move(out), tuple(part.clone() for part in out)
    wide_on_gpu.act(*move(given), *kernels, "fp32")
    mlp.act_twin(*given, *twins)
    for kernel, twin in zip(kernels, twins, strict=True):
        torch.testing.assert_close(kernel.cpu(), twin, rtol=1e-5, atol=1e-5)


@needs_triton
@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        *((case, "some") for case in CASES),
        *((CASES[0], wanted) for wanted in ("all", "one", "none")),
        *((CASES[-1], wanted) for wanted in ("all", "one", "none")),
    ],
    ids=str,
)
def test_the_kernels_value_as_the_twin(
    case: Case, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.kernels import wide_on_gpu

    monkeypatch.setattr(wide_on_gpu, "VALUED_ROWS", 10)
    made = make(case)
    number = torch.arange(len(made.rows.obs))
    which = {"all": None, "some": number % 3 > 0, "one": number == 15, "none": number < 0}[wanted]
    given = (*made[1:4], made.rows.obs, which)
    kernel, twin = torch.full((len(number),), 7.0, device=DEVICE), torch.full((len(number),), 7.0)
    wide_on_gpu.value(*move(given), kernel, case.n, "fp32")
    mlp.value_twin(*given, twin, case.n)
    torch.testing.assert_close(kernel.cpu(), twin, rtol=1e-5, atol=1e-5)


@needs_triton
@each_case
@pytest.mark.parametrize("narrow", [True, False])
def test_the_kernels_gradient_is_the_twins(
    case: Case, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.kernels import wide_on_gpu

    monkeypatch.setattr(wide_on_gpu, "MOST_INPUTS", 5 if narrow else 4)
    made = make(case)
    partial, measured = move(result(made, 1))
    wide_on_gpu.gradient(*move(made[1:]), partial, measured, "fp32")
    expected = taught(made, mlp.gradient_twin)
    torch.testing.assert_close(partial.cpu(), expected[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(measured.cpu(), expected[1], rtol=1e-4, atol=1e-6)


@needs_triton
@each_case
def test_bfloat16_changes_the_gradient_by_rounding_alone(case: Case) -> None:
    """With nothing so near a limit that rounding carries it over: relu's is at 0."""
    from stoker.kernels import wide_on_gpu

    smooth = case._replace(activation="elu" if case.activation == "relu" else case.activation)
    made = make(smooth._replace(clip_value=None, scaled=False, n=32, batch=100))
    made = made._replace(terms=made.terms._replace(clip=torch.full((1,), 10.0)))
    partial, measured = move(result(made, 1))
    wide_on_gpu.gradient(*move(made[1:]), partial, measured, "bf16")
    expected = taught(made, mlp.gradient_twin)[0]
    assert_each_near(made, partial[0].cpu(), expected[0], 0.1)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-5), ("tf32", 3e-3), ("bf16", 3e-2)]
)
def test_on_a_gpu_a_graph_gives_the_gradient_in_every_precision(
    precision: Any, tolerance: float
) -> None:
    made = make(Case(hidden=(1024, 512, 256), n=64, batch=200))
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    partial, measured = move(result(made, 1))
    given = move(made[1:])
    wide.gradient(*given, partial, measured, precision)
    torch.cuda.synchronize()
    eager = partial.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wide.gradient(*given, partial, measured, precision)
    partial.fill_(7.0)
    graph.replay()
    assert torch.equal(partial, eager)
    expected = taught(made, mlp.gradient_twin)[0]
    assert_each_near(made, partial[0].cpu(), expected[0], tolerance)
    torch.set_float32_matmul_precision("highest")
