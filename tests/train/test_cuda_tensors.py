"""Tensor environments on a GPU: the CPU's numbers, captured steps, and training."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tensor_envs import Dice, Ladder

from stoker.config import resolve
from stoker.envs import TENSORS
from stoker.envs.registry import EnvFactory
from stoker.pools.draws import TensorRng, key_of
from stoker.pools.tensor import TensorPool, describe_tensor_env
from stoker.train import loop
from stoker.train.build import build
from stoker.train.evaluate import evaluate
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.types import TensorEnv

pytestmark = pytest.mark.gpu
N = 64


def pool_of(env: Any, device: str) -> TensorPool:
    pool = TensorPool(env, describe_tensor_env("test", env), N, torch.device(device))
    pool.begin(3)
    return pool


def actions_of(pool: TensorPool, step: int) -> torch.Tensor:
    spec = pool.spec.action
    place = torch.arange(N * spec.width).view(N, -1) * 7 + step
    if spec.continuous:
        return torch.cos(place.float()).to(pool.device)
    return (place % torch.tensor(spec.nvec or (2,))).to(pool.device)


def test_random_numbers_are_the_cpus() -> None:
    numbers = []
    for device in ("cpu", "cuda"):
        ids = torch.arange(1000, device=device)
        rng = TensorRng(key_of(ids * 0 + 5), ids, torch.tensor(77, device=device))
        numbers.append((rng.uniform(3).cpu(), rng.uniform().cpu(), rng.normal(4).cpu()))
    for ours, theirs in zip(*numbers, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert torch.equal(numbers[0][0], numbers[1][0])


@pytest.mark.parametrize("name", TENSORS)
def test_a_step_is_the_cpus_and_can_be_captured(name: str) -> None:
    env = cast(TensorEnv, EnvFactory(name).make())
    on_cpu, eager, captured = pool_of(env, "cpu"), pool_of(env, "cuda"), pool_of(env, "cuda")
    first = actions_of(eager, 0)
    step = captured_step(captured, first.clone())
    for number in range(6):
        actions = actions_of(eager, number)
        theirs, ours = on_cpu.advance(actions.cpu()), eager.advance(actions)
        for leaf, value in ours.final_obs.items():
            torch.testing.assert_close(
                value.cpu(), theirs.final_obs[leaf], rtol=1e-3, atol=1e-3, check_dtype=True
            )
        torch.testing.assert_close(ours.reward.cpu(), theirs.reward, rtol=1e-3, atol=1e-3)
        replayed = step(actions)
        assert torch.equal(replayed["reward"], ours.reward)
        assert torch.equal(replayed["terminated"], ours.terminated)


def captured_step(pool: TensorPool, actions: torch.Tensor) -> Any:
    """`advance` as a CUDA graph over tensors of its own, from where the pool stands."""
    begun = pool.state()
    kept = {name: value.clone() for name, value in pool._state.items()}
    out: dict[str, torch.Tensor] = {}

    def once() -> None:
        pool._state = kept
        batch = pool.advance(actions)
        for name, value in pool._state.items():
            kept[name].copy_(value)
        out.update(reward=batch.reward, terminated=batch.terminated)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    for name, value in kept.items():
        value.copy_(begun[f"state.{name}"])
    pool.count.copy_(begun["count"])
    pool._state = kept  # which the graph goes on writing to

    def replay(given: torch.Tensor) -> dict[str, torch.Tensor]:
        actions.copy_(given)
        graph.replay()
        return out

    return replay


@pytest.mark.parametrize("make_env", [Ladder, Dice])
def test_training_on_the_gpu(make_env: Any) -> None:
    given = {"env": "test", "n_envs": 32, "n_steps": 16, "batch_size": 128, "n_epochs": 2}
    given |= {"network_arch": (32, 32), "device": "cuda", "eval_episodes": 0}
    config = resolve({**given, "timesteps": 6 * 512}, on_gpu=True)
    parts = build(config, EnvFactory(make_env))
    ended = loop.run(Session(parts, None), lambda progress: None, StopRequest(None))
    assert ended == "finished"
    assert all(p.isfinite().all() for p in parts.policy.parameters())
    assert parts.pool.device.type == "cuda"  # type: ignore[attr-defined]
    parts.close()


FUSED = {"kernels": "fused", "compile_in": "foreground", "device": "cuda"}
SMALL: dict[str, Any] = {"n_envs": 64, "n_steps": 16, "batch_size": 256, "n_epochs": 2}
SMALL |= {"network_arch": (64, 64), "eval_episodes": 0, "log_every": 3}


def learned(env: str, iterations: int, **settings: Any) -> dict[str, torch.Tensor]:
    """What a checkpoint would hold after some iterations."""
    given = {"env": env, **SMALL, **FUSED, **settings}
    config = resolve({**given, "timesteps": iterations * 1024}, on_gpu=True)
    parts = build(config)
    try:
        assert loop.run(Session(parts, None), lambda _: None, StopRequest(None)) == "finished"
        return {name: value.cpu() for name, value in parts.tensors().items()}
    finally:
        parts.close()


@pytest.mark.parametrize("env", ["tensor/CartPole-v1", "tensor/Pendulum-v1"])
@pytest.mark.parametrize("arch", [(64, 64), (256, 160)], ids=["small", "wide"])
def test_captured_and_kernel_by_kernel_the_same_bits_are_learned(
    env: str, arch: tuple[int, ...]
) -> None:
    settings = {"precision": "fp32", "network_arch": arch}
    captured, again, eager = (
        learned(env, 9, executor=executor, **settings) for executor in ("graph", "graph", "eager")
    )
    for name, value in captured.items():
        assert torch.equal(again[name], value), name
        assert torch.equal(eager[name], value), name


def test_each_agent_of_a_population_learns_what_it_would_alone() -> None:
    crowd = learned("tensor/CartPole-v1", 5, population=3, seed=7, precision="fp32")
    for number in range(3):
        alone = learned("tensor/CartPole-v1", 5, seed=7 + number, precision="fp32")
        for name, value in alone.items():
            if name.startswith("policy/"):
                own = crowd[name.replace("policy/", "crowd/")][number]
                torch.testing.assert_close(own, value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("deterministic", [True, False])
def test_captured_evaluation_plays_what_it_would_kernel_by_kernel(deterministic: bool) -> None:
    given = {"env": "tensor/CartPole-v1", **SMALL, "device": "cuda", "precision": "fp32"}
    parts = build(resolve({**given, "timesteps": 1024}, on_gpu=True))
    found = []
    for captures in (False, True):
        parts.policy.generator.manual_seed(5)
        found.append(
            evaluate(
                parts.policy,
                EnvFactory("tensor/CartPole-v1"),
                parts.pool.spec,
                parts.device,
                episodes=300,
                seed=3,
                max_steps=1000,
                deterministic=deterministic,
                pool="tensor",
                captures=captures,
            )
        )
    assert len(found[0].returns) == 300
    assert found[1] == found[0]
    parts.close()
