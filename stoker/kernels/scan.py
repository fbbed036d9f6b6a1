"""Recurrences over time, [T, N]: on a GPU one kernel walks through time, a column a thread.

In plain torch each step is a few kernels, launched one by one; for hundreds of steps that costs the
host more than all the rest of an update.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from stoker.kernels.building import built

_MANY_STEPS = 64  # so many kernels are launched before a compiler would be done


def backward(addend: Tensor, factor: Tensor) -> Tensor:
    """x[t] = addend[t] + factor[t] * x[t + 1], where nothing comes after the last."""
    kernels = _kernels() if _worth_building(addend) else None
    if kernels is None:
        return backward_twin(addend, factor)
    return kernels.backward(addend.contiguous(), factor.contiguous())


def forward(addend: Tensor, keep: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
    """x[t] = addend[t] + keep[t - 1] * x[t - 1], and keep[T - 1] * x[T - 1], to be carried on.

    The first has `carried` [N] added, which is what the scan before left.
    """
    kernels = _kernels() if _worth_building(addend) else None
    if kernels is None:
        return forward_twin(addend, keep, carried)
    return kernels.forward(addend.contiguous(), keep.contiguous(), carried)


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
    """Generalised advantage estimates [T, N] where every row is a step that was taken.

    What comes after a step is worth nothing where the episode terminated, `final_value` where it
    was truncated, else the next row's `value`; `last_value` [N] after the last row.
    """
    kernels = _kernels() if reward.is_cuda else None
    if kernels is None:
        return advantages_twin(
            reward, value, terminated, truncated, final_value, last_value, gamma, gae_lambda
        )
    rows = (reward, value, terminated, truncated, final_value)
    return kernels.advantages(*(each.contiguous() for each in rows), last_value, gamma, gae_lambda)


def backward_twin(addend: Tensor, factor: Tensor) -> Tensor:
    """`backward`, step by step."""
    result, running = torch.empty_like(addend), torch.zeros_like(addend[0])
    for t in range(len(addend) - 1, -1, -1):
        running = torch.addcmul(addend[t], factor[t], running, out=result[t])
    return result


def forward_twin(addend: Tensor, keep: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
    """`forward`, step by step."""
    result = torch.empty_like(addend)
    for t in range(len(addend)):
        torch.add(addend[t], carried, out=result[t])
        carried = keep[t] * result[t]
    return result, carried


def advantages_twin(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    last_value: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """`advantages`, of whole rollouts at once but for the scan."""
    ended = terminated | truncated
    next_value = torch.cat([value[1:], last_value[None]])
    successor = torch.where(ended, final_value.masked_fill(terminated, 0.0), next_value)
    surprise = reward + gamma * successor - value
    return backward_twin(surprise, gamma * gae_lambda * ~ended)


def _worth_building(rows: Tensor) -> bool:
    """Whether to use the kernels, which give the same bits: for few steps, if they are there."""
    return rows.is_cuda and (len(rows) >= _MANY_STEPS or _kernels.cache_info().currsize > 0)


@functools.cache
def _kernels() -> ModuleType | None:
    return built("scan_on_gpu")
