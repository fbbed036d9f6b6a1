"""`mlp.act` and `mlp.value` in Triton: a program takes a tile of one agent's rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels import heads, heads_on_gpu, layers_on_gpu
from stoker.kernels.layers_on_gpu import Launch
from stoker.kernels.mlp import Moments, Net

ACT = Launch(block=32, num_warps=2)
FEW = Launch(block=16, num_warps=2)
"""For agents with so few rows each."""
VALUE = Launch(block=64, num_warps=4)


@triton.jit
def _act(
    flat,
    centre,
    scale,
    obs,
    noise,
    action,
    log_prob,
    n,
    size,
    scaled: tl.constexpr,
    widths: tl.constexpr,
    padded: tl.constexpr,
    depth: tl.constexpr,
    activation: tl.constexpr,
    trunk: tl.constexpr,
    decide: tl.constexpr,
    log_std_place: tl.constexpr,
    head: tl.constexpr,
    starts: tl.constexpr,
    columns: tl.constexpr,
    widest: tl.constexpr,
    outputs: tl.constexpr,
    outputs_padded: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
):
    agent = tl.program_id(1).to(tl.int64)
    flat += agent * size
    i = tl.program_id(0) * block + tl.arange(0, block)
    here = i < n
    row = agent * n + i
    x = layers_on_gpu.observed(
        obs,
        row,
        here,
        centre + agent * widths[0],
        scale + agent * widths[0],
        widths[0],
        padded[0],
        scaled,
    )
    weights, biases = layers_on_gpu.layers(flat, trunk, widths, padded, depth)
    to_raw = layers_on_gpu.weight(
        flat, decide[0], widths[depth], outputs, padded[depth], outputs_padded
    )
    raw_bias = layers_on_gpu.vector(flat, decide[1], outputs, outputs_padded)
    if head == "gaussian":
        log_std = layers_on_gpu.vector(flat, log_std_place, outputs, outputs_padded)
    else:
        log_std = tl.zeros([outputs_padded], tl.float32)
    _, after = layers_on_gpu.passed(x, weights, biases, depth, activation, precision)
    raw = layers_on_gpu.product(after[depth], to_raw, precision) + raw_bias[None, :]
    drawn = heads_on_gpu.sample(
        raw, log_std, noise, action, row, here, head, starts, columns, widest
    )
    tl.store(log_prob + row, drawn, here)


@triton.jit
def _value(
    flat,
    centre,
    scale,
    obs,
    wanted,
    out,
    n,
    rows,
    size,
    some: tl.constexpr,
    scaled: tl.constexpr,
    widths: tl.constexpr,
    padded: tl.constexpr,
    depth: tl.constexpr,
    activation: tl.constexpr,
    trunk: tl.constexpr,
    judge: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
):
    agent = tl.program_id(1).to(tl.int64)
    flat += agent * size
    i = tl.program_id(0) * block + tl.arange(0, block)
    exists = i < rows
    row = ((i // n) * tl.num_programs(1) + agent) * n + i % n
    here = exists
    if some:
        here = exists & (tl.load(wanted + row, exists, other=0) != 0)
    worth = tl.zeros([block], tl.float32)
    if tl.max(here.to(tl.int32), 0) > 0:
        x = layers_on_gpu.observed(
            obs,
            row,
            here,
            centre + agent * widths[0],
            scale + agent * widths[0],
            widths[0],
            padded[0],
            scaled,
        )
        weights, biases = layers_on_gpu.layers(flat, trunk, widths, padded, depth)
        _, after = layers_on_gpu.passed(x, weights, biases, depth, activation, precision)
        to_value = layers_on_gpu.vector(flat, judge[0], widths[depth], padded[depth])
        worth = tl.sum(after[depth] * to_value[None, :], 1) + tl.load(flat + judge[1])
    tl.store(out + row, tl.where(here, worth, 0.0), exists)


def act(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    noise: Tensor,
    action: Tensor,
    log_prob: Tensor,
    precision: str,
    launch: Launch | None = None,
) -> None:
    """See `mlp.act`."""
    agents, n = len(flat), len(obs) // len(flat)
    launch = launch or (FEW if n <= FEW.block else ACT)
    centre, scale = moments or (flat, flat)
    _act[(triton.cdiv(n, launch.block), agents)](
        flat,
        centre,
        scale,
        obs,
        noise,
        action,
        log_prob,
        n,
        net.size,
        scaled=moments is not None,
        trunk=sum(net.actor, ()),
        decide=net.decide,
        log_std_place=net.log_std,
        head=net.head,
        starts=heads.starts(net.nvec),
        columns=net.columns,
        widest=max(net.nvec, default=0),
        outputs=net.outputs,
        outputs_padded=layers_on_gpu.padded(net.outputs),
        **layers_on_gpu.described(net, precision),
        **launch._asdict(),
    )


def value(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    wanted: Tensor | None,
    out: Tensor,
    n: int,
    precision: str,
    launch: Launch = VALUE,
) -> None:
    """See `mlp.value`."""
    agents, rows = len(flat), len(obs) // len(flat)
    centre, scale = moments or (flat, flat)
    _value[(triton.cdiv(rows, launch.block), agents)](
        flat,
        centre,
        scale,
        obs,
        flat if wanted is None else wanted,
        out,
        n,
        rows,
        net.size,
        some=wanted is not None,
        scaled=moments is not None,
        trunk=sum(net.critic, ()),
        judge=net.judge,
        **layers_on_gpu.described(net, precision),
        **launch._asdict(),
    )
