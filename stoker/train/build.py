"""The only place that constructs: from a config and an environment to the parts of a run."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import torch

from stoker.algos.returns import ReturnScaler
from stoker.collect.on_device import DeviceCollector
from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError
from stoker.learn.learner import Learner
from stoker.learn.q_learner import QLearner
from stoker.learn.whole import Whole
from stoker.monitor.phases import PhaseClock
from stoker.nn.q_network import QNetwork
from stoker.pools.base import BasePool
from stoker.pools.on_device import DevicePool
from stoker.pools.tensor import TensorPool
from stoker.storage.on_device import DeviceStorage
from stoker.train import devices, population
from stoker.train.collecting import Collection, make_collector
from stoker.train.fused import Fused, why_not
from stoker.train.learning import make_learner, make_scaler, ppo_lesson
from stoker.train.overlap import Decision
from stoker.train.parts import Lesson, Parts
from stoker.train.policies import TrainedPolicy, make_actor_critic, make_policy
from stoker.train.replaying import describe_replay, make_q_learner, make_replay, q_lesson
from stoker.train.sizes import as_size, memory_need
from stoker.train.sources import EnvSource, factory_of, make_pool, own_copies
from stoker.train.swap import Swap, whole_lesson
from stoker.train.watch import watch_over
from stoker.types import (
    EnvSpec,
    Way,
)

_HOW = {"eager": "eagerly", "compile": "compiled", "graph": "as a CUDA graph"}


def build(config: Config, env: EnvSource | None = None) -> Parts:
    """Parts for `config`, whose environment may be given as an object instead of a name."""
    device = devices.find_device(config.compute.device)
    devices.set_up(device, config.compute.precision, config.compute.torch_threads)
    source = env if env is not None else factory_of(config)
    pool, config, decisions = make_pool(config, source, device)
    try:
        return _assemble(config, device, pool, decisions, own_copies(source, pool.spec))
    except BaseException:
        pool.close()
        raise


def _assemble(
    config: Config,
    device: torch.device,
    pool: BasePool,
    decisions: list[Decision],
    eval_factory: EnvFactory | None,
) -> Parts:
    if config.run.population > 1 and not isinstance(pool, TensorPool):
        raise ConfigError(
            f"population is {config.run.population}, and {pool.spec.name} is no tensor "
            "environment: only of those can many be stepped for many agents at once "
            "(docs/tensor-environments.md)."
        )
    seeds = range(config.run.seed, config.run.seed + config.run.population)
    policies = [make_policy(pool.spec, config, device, seed) for seed in seeds]
    executor, on_device = _executor(config, device), isinstance(pool, DevicePool)
    whole = Whole(captures=on_device and executor == "graph")
    pinned = pool.memory if _pins(pool, device) else None  # before somebody copies from it
    learning = _make_learning(config, device, pool, policies[0], whole, executor)
    collection = learning.collection
    parts = Parts(
        config,
        device,
        decisions + _describe_choices(config, device, pool.spec, policies[0], learning),
        eval_factory,
        pool,
        policies,
        learning.scaler,
        collection.collector,
        learning.learner,
        learning.lesson,
        collection.learner_clock,
        collection.clock,
        collection.trial,
        pinned,
        whole,
        watch=watch_over(config, device),
    )
    if isinstance(pool, TensorPool) and config.learning.algo == "ppo":
        _prepare_kernels(parts, pool)
    return parts


class _Learning(NamedTuple):
    """How an algorithm learns, and from whom it gets what it learns from."""

    collection: Collection
    learner: Learner | QLearner
    lesson: Lesson
    scaler: ReturnScaler | None


def _make_learning(
    config: Config,
    device: torch.device,
    pool: BasePool,
    policy: TrainedPolicy,
    whole: Whole,
    executor: str,
) -> _Learning:
    if isinstance(policy, QNetwork):
        replay = make_replay(config, pool.spec, pool.n_envs, device)
        q_learner = make_q_learner(config, pool.spec, policy, replay, executor)
        collection = make_collector(config, device, pool, policy, whole, q_learner)
        lesson = q_lesson(policy, q_learner, collection.collector)
        return _Learning(collection, q_learner, lesson, None)
    scaler = make_scaler(config, pool.n_envs, device)
    on_device = isinstance(pool, DevicePool)
    learner = make_learner(config, device, policy, scaler, executor, on_device)
    collection = make_collector(config, device, pool, policy, whole)
    lesson = ppo_lesson(policy, learner, collection.collector)
    if isinstance(collection.collector, DeviceCollector):
        once = functools.partial(lesson, collection.collector.storage)
        lesson = whole_lesson(whole, once, learner.generator)
    return _Learning(collection, learner, lesson, scaler)


def _prepare_kernels(parts: Parts, pool: TensorPool) -> None:
    """Have Stoker's own kernels take over, where they can and shall: at once, or when built."""
    config, device, spec = parts.config, parts.device, pool.spec
    asked, many = config.compute.kernels, config.run.population > 1
    reason = why_not(spec, config, parts.actor_critics[0])
    if reason and (asked == "fused" or many):
        wish = f"population is {config.run.population}" if many else "kernels is fused"
        raise ConfigError(f"{wish}, and Stoker's kernels cannot serve this run: {reason}.")
    if reason or not (asked == "fused" or many or gains_from_kernels(parts)):
        if reason and gains_from_kernels(parts):
            parts.decisions.append(Decision("kernels", "torch's", f"of Stoker's own, {reason}"))
        return
    if many:
        parts.decisions.append(population.described(config))
    shape = (spec, config.ppo.n_steps, pool.n_envs, device)
    scalars = population.scalars(config, device)

    def live(way: Way) -> Fused:
        collector, generator = parts.collector, parts.learner.generator
        assert isinstance(collector, DeviceCollector)
        given = (parts.actor_critics, config, spec, collector.storage, parts.scaler)
        return Fused(*given, scalars, pool.count, generator, way)

    def rehearsal(way: Way) -> tuple[Fused, DeviceCollector]:
        plain = dataclasses.replace(config.network, ortho_init=False)
        quick = dataclasses.replace(config, network=plain)
        policies = [make_actor_critic(spec, quick, device, 0) for _ in parts.policies]
        storage, generator, twin = DeviceStorage(*shape), torch.Generator(device), pool.twin()
        given = (policies, config, spec, storage, make_scaler(config, pool.n_envs, device))
        fused = Fused(*given, scalars, twin.count, generator, way)
        seeds = range(len(policies))
        return fused, DeviceCollector(twin, policies[0], storage, PhaseClock(), seeds)

    swap = Swap(parts, live, rehearsal)
    if config.compute.compile_in == "foreground" or asked == "fused" or many:
        parts.decisions.append(swap.take_over(swap.build()))
    else:
        parts.trial = swap


def gains_from_kernels(parts: Parts) -> bool:
    """Whether to go over to Stoker's kernels, where nobody says which are wanted."""
    return parts.config.compute.kernels == "auto" and parts.whole.captures


def _pins(pool: BasePool, device: torch.device) -> bool:
    return device.type == "cuda" and pool.memory is not None and devices.pin(pool.memory)


def _executor(config: Config, device: torch.device) -> str:
    """How updates run; a CUDA graph wants a GPU."""
    asked = config.compute.executor
    if asked == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if asked == "graph" and device.type != "cuda":
        raise ConfigError("executor is graph, which needs a GPU; use eager, compile or auto.")
    return asked


def _describe_choices(
    config: Config,
    device: torch.device,
    spec: EnvSpec,
    policy: TrainedPolicy,
    learning: _Learning,
) -> list[Decision]:
    collection = learning.collection
    count = sum(parameter.numel() for parameter in policy.parameters())
    asked = config.compute.device
    on_gpu = device.type == "cuda"
    found = "the GPU was found" if on_gpu else "no GPU was found"
    precision = config.compute.precision if on_gpu else "fp32"
    return [
        Decision("device", devices.describe(device), found if asked == "auto" else "asked for"),
        *_describe_batch(config, learning.learner),
        Decision(
            "network",
            _layers(config),
            f"{count:,} parameters, {_trunks(config)}",
        ),
        Decision("precision", precision, f"updates run {_HOW[_executor(config, device)]}"),
        collection.decision,
        Decision(
            "storage",
            f"{collection.storage_bytes / 1024:,.0f} KiB on the {device.type}",
            "two rollouts" if collection.trial or collection.collector.ahead else "one rollout",
        ),
        _describe_memory(config, device, spec),
    ]


def _layers(config: Config) -> str:
    actor, critic = (
        "-".join(map(str, sizes))
        for sizes in (config.network.network_arch, config.network.critic_sizes)
    )
    return actor if actor == critic else f"{actor}, the critic {critic}"


def _trunks(config: Config) -> str:
    if config.learning.algo == "dqn":
        return "and a target network of as many"
    return "one trunk" if config.network.shared_trunk else "actor and critic apart"


def _describe_batch(config: Config, learner: Learner | QLearner) -> list[Decision]:
    if isinstance(learner, QLearner):
        return describe_replay(config, learner.replay)
    sizes = f"{config.env.n_envs} x {config.ppo.n_steps} steps = {config.total_batch:,}"
    updates = config.ppo.n_epochs * config.n_minibatches
    return [
        Decision(
            "batch",
            f"{sizes}, in minibatches of {config.minibatch:,}",
            f"{config.ppo.n_epochs} epochs, {updates} updates an iteration",
        )
    ]


def _describe_memory(config: Config, device: torch.device, spec: EnvSpec) -> Decision:
    need = memory_need(config, spec, device)
    host = f"; workers take {as_size(need.workers)} more" if need.workers else ""
    return Decision("memory", f"about {as_size(need.total)}", f"{need.arithmetic}{host}")
