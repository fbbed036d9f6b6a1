"""What PPO learns with: a rollout made ready, the loss, the learner, and the lesson."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call

from stoker.algos import ppo
from stoker.algos.returns import ReturnScaler
from stoker.collect.in_step import InStepCollector
from stoker.collect.on_device import DeviceCollector
from stoker.config.schema import Config
from stoker.learn.executor import executable
from stoker.learn.learner import Learner
from stoker.nn.actor_critic import ActorCritic
from stoker.storage.rollout import RolloutStorage
from stoker.train import memory
from stoker.train.by_hand import JUDGED, quickly
from stoker.train.fused import SHUFFLED_APART
from stoker.train.parts import Lesson
from stoker.train.ppo_by_hand import LearnerByHand, learns_by_hand
from stoker.types import (
    LearnReport,
    Loss,
    LossFunction,
    Minibatch,
    Prepare,
    Prepared,
    Rollout,
)


def make_scaler(config: Config, n_envs: int, device: torch.device) -> ReturnScaler | None:
    """What rewards are divided by, if they are."""
    if not config.ppo.normalize_reward:
        return None
    return ReturnScaler(n_envs, config.ppo.gamma, config.run.population).to(device)


def make_learner(
    config: Config,
    device: torch.device,
    policy: ActorCritic,
    scaler: ReturnScaler | None = None,
    executor: str = "eager",
    on_device: bool = False,
) -> Learner:
    """By hand where that pays, and is possible; else by autograd.

    Where environments are `on_device`, whoever runs the lesson may capture it as a whole.
    """
    kind = partial(LearnerByHand, policy) if learns_by_hand(policy, config) else Learner
    learner = kind(
        dict(policy.named_parameters()),
        _preparation(config, scaler),
        executable(loss_of(policy, config), executor, config.compute.compile_in),
        config.ppo,
        config.minibatch,
        device,
        config.run.seed + SHUFFLED_APART,
        "eager" if on_device and executor == "graph" else executor,
        asks=not on_device,
        normalise=ppo.normalised if config.ppo.normalize_advantage else None,
        micro_batch=config.compute.micro_batch,
    )
    memory.save_updates(learner)
    return learner


def _preparation(config: Config, scaler: ReturnScaler | None) -> Prepare:
    def prepare(rollout: Rollout) -> Prepared:
        reward = rollout.reward
        if scaler is not None:
            reward = scaler(reward, rollout.terminated | rollout.truncated, rollout.valid)
        return ppo.prepare(rollout, reward, config.ppo)

    return prepare


def loss_of(policy: ActorCritic, config: Config) -> LossFunction:
    """PPO's, of the policy's modules under any parameters."""

    def loss(parameters: Mapping[str, Tensor], batch: Minibatch, clip: Tensor) -> Loss:
        arguments = (batch.obs, batch.action_mask, batch.action)
        # Weights that are shared are shared modules here, so there are no ties to look for.
        now = functional_call(policy, dict(parameters), arguments, tie_weights=False)
        return ppo.loss(now, batch, clip, config.ppo)

    return loss


def ppo_lesson(
    policy: ActorCritic, learner: Learner, collector: InStepCollector | DeviceCollector
) -> Lesson:
    """Learns from a rollout; then takes what was seen in it into the statistics."""

    judge = quickly(policy, JUDGED)

    def lesson(storage: RolloutStorage) -> LearnReport:
        rollout = memory.judged(storage, judge, collector.version)
        report = learner.learn(rollout, collector.version)
        policy.update_moments(rollout.obs, rollout.valid)
        return report

    return lesson
