"""The update of `adam` in Triton: one kernel sums the gradient's parts, one applies it."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels.adam import APPLIED, BETAS, STOP_AT, AdamTerms, Optimised

_SUMMED = (64, 1024)  # the fewest and the most parameters a program of the first kernel; or more,
_MOST_BLOCKS = 1024  # as so many add to the norm: each program of the second reads what all added
_LOADED = 8192  # numbers at once, by a program of the first kernel
_MEASURED = 8  # five, in a power of two


@triton.jit
def _sum(
    parts,
    gradient,
    squares,
    n_parts,
    size,
    blocks,
    width: tl.constexpr,
    at_once: tl.constexpr,
    stores: tl.constexpr,
):
    agent = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * width + tl.arange(0, width)
    part = tl.arange(0, at_once)
    here = place < size
    total = tl.zeros([width], tl.float32)
    for first in range(0, n_parts, at_once):
        row = agent * n_parts + first + part
        mask = (first + part < n_parts)[:, None] & here[None, :]
        total += tl.sum(tl.load(parts + row[:, None] * size + place[None, :], mask, 0.0), 0)
    if stores:
        tl.store(gradient + agent * size + place, total, here)
    tl.store(squares + agent * blocks + tl.program_id(0), tl.sum(total * total))


@triton.jit
def _apply(
    flat,
    mean,
    square,
    counts,
    stopped,
    tally,
    made,
    skipped,
    gradient,
    squares,
    measured,
    rates,
    entropies,
    values,
    n_parts,
    size,
    blocks,
    most,
    eps,
    kl_limit,
    keep_mean: tl.constexpr,
    keep_square: tl.constexpr,
    log_mean: tl.constexpr,
    log_square: tl.constexpr,
    width: tl.constexpr,
    padded_parts: tl.constexpr,
    padded_blocks: tl.constexpr,
    columns: tl.constexpr,
):
    agent = tl.program_id(1).to(tl.int64)
    block = tl.arange(0, padded_blocks)
    norm = tl.sqrt(tl.sum(tl.load(squares + agent * blocks + block, block < blocks, 0.0)))
    part, column = tl.arange(0, padded_parts), tl.arange(0, columns)
    mask = (part < n_parts)[:, None] & (column < 5)[None, :]
    row = (agent * n_parts + part)[:, None] * 5 + column[None, :]
    sums = tl.sum(tl.load(measured + row, mask, 0.0), 0)
    policy_loss = tl.sum(tl.where(column == 0, sums, 0.0))
    value_loss = tl.sum(tl.where(column == 1, sums, 0.0))
    entropy = tl.sum(tl.where(column == 2, sums, 0.0))
    kl = tl.sum(tl.where(column == 3, sums, 0.0))
    clipped = tl.sum(tl.where(column == 4, sums, 0.0))
    weighted = tl.load(values + agent) * value_loss - tl.load(entropies + agent) * entropy
    total = policy_loss + weighted
    # Whether this agent has stopped is written below by one program and read by all; each comes to
    # the same, be it before or after.
    stops = tl.where(kl > kl_limit, 1, tl.load(stopped + agent).to(tl.int32))
    finite = tl.where(tl.abs(norm) + tl.abs(total) < float("inf"), 1, 0)  # not so for NaN
    makes = finite * (1 - stops)
    own = agent * tl.num_programs(0) + tl.program_id(0)
    count = tl.load(counts + own) + makes.to(tl.float32)
    tl.store(counts + own, count)

    place = tl.program_id(0) * width + tl.arange(0, width)
    here = place < size * makes
    place = agent * size + place
    grad = tl.load(gradient + place, here, 0.0) * tl.minimum(most / (norm + 1e-6), 1.0)
    new_mean = tl.load(mean + place, here, 0.0)
    new_mean += (grad - new_mean) * (1 - keep_mean)
    new_square = tl.load(square + place, here, 0.0) * keep_square + (1 - keep_square) * grad * grad
    first = (1 - tl.exp(count.to(tl.float64) * log_mean)).to(tl.float32)
    second = (1 - tl.exp(count.to(tl.float64) * log_square)).to(tl.float32)
    size_of_step = tl.load(rates + agent) / first
    change = size_of_step * new_mean / (tl.sqrt(new_square) / tl.sqrt(second) + eps)
    tl.store(mean + place, new_mean, here)
    tl.store(square + place, new_square, here)
    tl.store(flat + place, tl.load(flat + place, here, 0.0) - change, here)

    if tl.program_id(0) == 0:
        tl.store(stopped + agent, stops.to(tl.int8))
        tl.store(made + agent, tl.load(made + agent) + makes)
        tl.store(skipped + agent, tl.load(skipped + agent) + 1 - finite)
        if makes == 1:
            first_of = tally + agent * 7
            tl.store(first_of, tl.load(first_of) + total)
            tl.store(first_of + 1, tl.load(first_of + 1) + policy_loss)
            tl.store(first_of + 2, tl.load(first_of + 2) + value_loss)
            tl.store(first_of + 3, tl.load(first_of + 3) - entropy)
            tl.store(first_of + 4, tl.load(first_of + 4) + kl)
            tl.store(first_of + 5, tl.load(first_of + 5) + clipped)
            tl.store(first_of + 6, tl.load(first_of + 6) + norm)


def step(optimised: Optimised, parts: Tensor, measured: Tensor, terms: AdamTerms) -> None:
    """See `adam.step`."""
    agents, n_parts, size = parts.shape
    padded_parts = triton.next_power_of_2(n_parts)
    width = min(max(_LOADED // padded_parts, _SUMMED[0]), _SUMMED[1])
    width = max(width, triton.next_power_of_2(triton.cdiv(size, _MOST_BLOCKS)))
    blocks = triton.cdiv(size, width)
    gradient = parts if n_parts == 1 else torch.empty_like(optimised.flat)
    squares = parts.new_empty(agents, blocks)
    _sum[(blocks, agents)](
        parts,
        gradient,
        squares,
        n_parts,
        size,
        blocks,
        width=width,
        at_once=min(padded_parts, max(1, _LOADED // width)),
        stores=n_parts > 1,
        num_warps=4,
    )
    _apply[(optimised.counts.shape[1], agents)](
        *optimised[:4],
        optimised.stopped.view(torch.int8),
        *optimised[5:],
        gradient,
        squares,
        measured,
        terms.rate,
        terms.entropy,
        terms.value,
        n_parts,
        size,
        blocks,
        terms.most,
        terms.eps,
        STOP_AT * terms.kl,
        keep_mean=BETAS[0],
        keep_square=BETAS[1],
        log_mean=math.log(BETAS[0]),
        log_square=math.log(BETAS[1]),
        width=APPLIED,
        padded_parts=padded_parts,
        padded_blocks=triton.next_power_of_2(blocks),
        columns=_MEASURED,
        num_warps=4,
    )
