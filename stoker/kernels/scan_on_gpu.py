"""The scans of `scan` in Triton: the same operations in the same order, so the same bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 32  # a warp: its threads walk side by side


@triton.jit(do_not_specialize=["steps"])  # else some lengths would be built amid a run
def _backward(addend, factor, result, steps, n, columns: tl.constexpr):
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    here = column < n
    running = tl.zeros([columns], tl.float32)
    for i in range(steps):
        place = tl.cast(steps - 1 - i, tl.int64) * n + column
        added = tl.load(addend + place, here)
        running = tl.fma(tl.load(factor + place, here), running, added)  # rounds once, as addcmul
        tl.store(result + place, running, here)


@triton.jit(do_not_specialize=["steps"])  # else some lengths would be built amid a run
def _forward(addend, keep, start, result, end, steps, n, columns: tl.constexpr):
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    here = column < n
    carried = tl.load(start + column, here)
    for t in range(steps):
        place = tl.cast(t, tl.int64) * n + column
        total = tl.load(addend + place, here) + carried
        carried = tl.load(keep + place, here) * total
        tl.store(result + place, total, here)
    tl.store(end + column, carried, here)


@triton.jit(do_not_specialize=["steps"])  # else some lengths would be built amid a run
def _advantages(
    reward,
    value,
    terminated,
    truncated,
    final_value,
    last_value,
    result,
    gamma,
    decay,
    steps,
    n,
    columns: tl.constexpr,
):
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    here = column < n
    next_value = tl.load(last_value + column, here)
    running = tl.zeros([columns], tl.float32)
    for i in range(steps):
        place = tl.cast(steps - 1 - i, tl.int64) * n + column
        over = tl.load(terminated + place, here) != 0
        cut = tl.load(truncated + place, here) != 0
        after = tl.where(cut, tl.load(final_value + place, here), next_value)
        now = tl.load(value + place, here)
        surprise = tl.load(reward + place, here) + gamma * tl.where(over, 0.0, after) - now
        running = tl.fma(tl.where(over | cut, 0.0, decay), running, surprise)
        tl.store(result + place, running, here)
        next_value = now


def backward(addend: Tensor, factor: Tensor) -> Tensor:
    """See `scan.backward`."""
    (steps, n), result = addend.shape, torch.empty_like(addend)
    _backward[(triton.cdiv(n, _COLUMNS),)](
        addend, factor, result, steps, n, columns=_COLUMNS, num_warps=1
    )
    return result


def forward(addend: Tensor, keep: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
    """See `scan.forward`."""
    (steps, n), result, end = addend.shape, torch.empty_like(addend), torch.empty_like(carried)
    _forward[(triton.cdiv(n, _COLUMNS),)](
        addend,
        keep,
        carried,
        result,
        end,
        steps,
        n,
        columns=_COLUMNS,
        num_warps=1,
        enable_fp_fusion=False,  # rounds twice a step, as torch does
    )
    return result, end


def advantages(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    last_value: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """See `scan.advantages`."""
    (steps, n), result = reward.shape, torch.empty_like(reward)
    _advantages[(triton.cdiv(n, _COLUMNS),)](
        reward,
        value,
        terminated,
        truncated,
        final_value,
        last_value,
        result,
        gamma,
        gamma * gae_lambda,
        steps,
        n,
        columns=_COLUMNS,
        num_warps=1,
        enable_fp_fusion=False,  # rounds as torch does
    )
    return result


def try_out() -> None:
    """Build them, and run them once."""
    ones = torch.ones(2, 3, device="cuda")
    backward(ones, ones)
    forward(ones, ones, ones[0])
    advantages(ones, ones, ones > 1, ones > 1, ones, ones[0], 1.0, 1.0)
