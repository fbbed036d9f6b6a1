"""`shuffle.shuffled` in Triton: a program makes a part of one minibatch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels import shuffle

_ROUNDS = tl.constexpr(shuffle.ROUNDS)
_FIRST_FACTOR = tl.constexpr(shuffle.FIRST_FACTOR)
_SECOND_FACTOR = tl.constexpr(shuffle.SECOND_FACTOR)
_GOLDEN = tl.constexpr(shuffle.GOLDEN)
NUM_WARPS = 4


@triton.jit
def _word(number):
    return tl.cast(number, tl.uint32)


@triton.jit
def _mixed(word):
    word ^= word >> 16
    word *= _word(_FIRST_FACTOR)
    word ^= word >> 13
    word *= _word(_SECOND_FACTOR)
    word ^= word >> 16
    return word


@triton.jit
def _shuffled(
    keys,
    advantage,
    index,
    spread,
    n,
    batch,
    parts,
    agents,
    a: tl.constexpr,
    b: tl.constexpr,
    block: tl.constexpr,
):
    minibatch = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    agent = tl.program_id(1)
    epoch = tl.program_id(2)
    key = tl.load(keys + agent)
    low = _mixed(_word(key) ^ _mixed(_word(epoch) * _word(_GOLDEN)))
    high = _mixed(_word(key >> 32) + low)

    inside = part * block + tl.arange(0, block)
    here = inside < batch
    position = minibatch * batch + inside
    left = _word(position // b)
    right = _word(position % b)
    for i in tl.static_range(_ROUNDS):
        left_key = _mixed(low + _word(2 * i) * _word(_GOLDEN))
        left = (left + _mixed(right ^ left_key) % a) % a
        right_key = _mixed(high + _word(2 * i + 1) * _word(_GOLDEN))
        right = (right + _mixed(left ^ right_key) % b) % b
    local = (left * b + right).to(tl.int32)
    row = (local // n * agents + agent) * n + local % n
    run = (tl.cast(epoch, tl.int64) * (tl.num_programs(0) // parts) + minibatch) * agents + agent
    tl.store(index + run * batch + inside, row, here)

    value = tl.load(advantage + row, here, other=0.0)
    count = tl.sum(here.to(tl.float32), 0)
    mean = tl.sum(value, 0) / count
    apart = tl.where(here, value - mean, 0.0)
    place = spread + (run * parts + part) * 3
    tl.store(place, count)
    tl.store(place + 1, mean)
    tl.store(place + 2, tl.sum(apart * apart, 0))


def shuffled(
    keys: Tensor, epochs: int, n: int, steps: int, advantage: Tensor, minibatches: int
) -> tuple[Tensor, Tensor]:
    """See `shuffle.shuffled`."""
    agents, rows = len(keys), steps * n
    batch = rows // minibatches
    block = min(shuffle.BLOCK, triton.next_power_of_2(batch))
    parts = triton.cdiv(batch, block)
    index = torch.empty(epochs, minibatches, agents, batch, dtype=torch.int32, device=keys.device)
    spread = torch.empty(epochs, minibatches, agents, parts, 3, device=keys.device)
    a, b = shuffle.radices(rows)
    _shuffled[(minibatches * parts, agents, epochs)](
        keys,
        advantage,
        index,
        spread,
        n,
        batch,
        parts,
        agents,
        a=a,
        b=b,
        block=block,
        num_warps=NUM_WARPS,
    )
    return index, spread
