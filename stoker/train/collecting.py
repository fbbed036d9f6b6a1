"""How rollouts are collected: in step, overlapped, interleaved with updates, or on the device."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from stoker.collect.gather import FreeGatherer, Gatherer
from stoker.collect.in_step import InStepCollector
from stoker.collect.interleaved import InterleavedCollector, InterleavedGatherer
from stoker.collect.on_device import DeviceCollector
from stoker.collect.overlapped import OverlappedCollector
from stoker.collect.weights import Weights
from stoker.config.schema import Config
from stoker.errors import ConfigError
from stoker.learn.q_learner import QLearner
from stoker.learn.whole import Whole
from stoker.monitor.phases import PhaseClock
from stoker.pools.base import BasePool
from stoker.pools.on_device import DevicePool
from stoker.storage.on_device import DeviceStorage
from stoker.storage.staged import StagedStorage
from stoker.train.by_hand import quickly
from stoker.train.overlap import Decision, OverlapTrial
from stoker.train.policies import TrainedPolicy, make_policy
from stoker.train.sizes import capacity, may_interleave, may_overlap, rollout_size


class Collection(NamedTuple):
    """A collector, and what goes with it."""

    collector: InStepCollector | DeviceCollector
    learner_clock: PhaseClock
    clock: PhaseClock
    trial: OverlapTrial | None
    storage_bytes: int
    decision: Decision


def make_collector(
    config: Config,
    device: torch.device,
    pool: BasePool,
    policy: TrainedPolicy,
    whole: Whole,
    q_learner: QLearner | None = None,
) -> Collection:
    """In step, or overlapped; with `auto`, pools that step elsewhere are tried both ways.

    DQN on a CPU has its updates made while workers step, by the thread that waits for them: two
    would take Python's lock from each other with every operation of some microseconds.
    """
    mode, elsewhere = config.env.collect, pool.elsewhere
    shape = (pool.spec, config.learning.n_steps, pool.n_envs)
    size, clock = rollout_size(*shape), PhaseClock()
    if isinstance(pool, DevicePool):
        runs = None
        if whole.captures and pool.capturable:
            runs = functools.partial(whole, generator=policy.generator)
        first, storage = config.run.seed, DeviceStorage(*shape, device)
        seeds = range(first, first + config.run.population)
        acts = quickly(policy, pool.n_envs)
        on_device = DeviceCollector(pool, acts, storage, clock, seeds, runs)
        why = "environments are tensors: they and the network share the device"
        return Collection(on_device, clock, clock, None, size, Decision("collect", "in step", why))
    if mode == "interleave":
        if q_learner is None or not may_interleave(config, device):
            raise ConfigError(
                f"collect is interleave, and this is {config.learning.algo} with the pool "
                f"{config.env.pool} on {device.type}: it is for dqn with the pool process on cpu. "
                "Leave collect to auto."
            )
        acting = make_policy(pool.spec, config, device, config.run.seed)
        given = (pool, quickly(acting, pool.n_envs), clock, config.run.seed, device)
        weights = Weights(policy, acting)
        by_turns = InterleavedGatherer(*given, weights=weights, meanwhile=q_learner.go_on)
        interleaved = InterleavedCollector(by_turns, StagedStorage(*shape, device))
        why = "updates are made while environments step, in one thread"
        decision = Decision("collect", "interleaved", why)
        return Collection(interleaved, clock, clock, None, size, decision)
    if not may_overlap(config, elsewhere):
        why = "asked for" if mode == "step" else "environments step in this process"
        acts = quickly(policy, pool.n_envs)
        gatherer = Gatherer(pool, acts, clock, config.run.seed, device)
        in_step = InStepCollector(gatherer, StagedStorage(*shape, device))
        return Collection(in_step, clock, clock, None, size, Decision("collect", "in step", why))
    return _overlapped(config, device, pool, policy, clock)


def _overlapped(
    config: Config, device: torch.device, pool: BasePool, policy: TrainedPolicy, clock: PhaseClock
) -> Collection:
    """In a thread of its own, with a policy of its own; or at first in step, until it is tried."""
    mode, elsewhere = config.env.collect, pool.elsewhere
    rows = capacity(config) if elsewhere else config.learning.n_steps
    acting, collect_clock = (
        make_policy(pool.spec, config, device, config.run.seed),
        PhaseClock(),
    )
    acts = quickly(acting, pool.n_envs)
    given = (pool, acts, collect_clock, config.run.seed, device)
    oldest = config.env.max_lag if config.env.pool == "io" else 0
    gatherer = FreeGatherer(*given, oldest=oldest) if elsewhere else Gatherer(*given)
    shape = (pool.spec, config.learning.n_steps, pool.n_envs)
    storages = (
        StagedStorage(*shape, device, rows),
        StagedStorage(*shape, device, rows),
    )
    size = rollout_size(pool.spec, rows, pool.n_envs)
    overlapped = OverlappedCollector(
        gatherer, storages, Weights(policy, acting), clock, ahead=mode == "overlap"
    )
    if mode == "overlap":
        decision = Decision("collect", "overlapped", "asked for; the policy is one iteration late")
        return Collection(overlapped, clock, collect_clock, None, 2 * size, decision)
    trial = OverlapTrial(overlapped, clock, collect_clock)
    decision = Decision("collect", "in step at first", "overlapped as soon as that is seen to pay")
    return Collection(overlapped, clock, collect_clock, trial, 2 * size, decision)
