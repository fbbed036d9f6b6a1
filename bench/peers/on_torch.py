"""What peers that are written in torch are given: the device, and our environments as tensors."""

from __future__ import annotations

from itertools import pairwise

import gymnasium
import torch
from torch import Tensor, nn

from stoker.envs.registry import EnvFactory, is_device_vector
from stoker.pools.tensor import TensorPool, describe_tensor_env
from stoker.types import PLAIN, TensorEnv

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_up(precision: str) -> None:
    """TF32, unless float32 is asked for to the last bit; and one thread on the CPU, as ours has."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


def wait() -> None:
    """Until the device is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def open_envs(name: str, n: int) -> tuple[TensorEnv, TensorPool]:
    """A tensor environment, and many of it that have begun; see `TensorPool.advance`."""
    env = EnvFactory(name).make()
    assert not isinstance(env, gymnasium.Env), f"{name} is not a tensor environment"
    assert not is_device_vector(env), f"{name} steps by itself"
    pool = TensorPool(env, describe_tensor_env(name, env), n, DEVICE)
    pool.begin(0)
    return env, pool


def seen(pool: TensorPool) -> Tensor:
    """What everyone sees, [N, width]."""
    return pool.obs[PLAIN]


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Layers with tanh between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))
