"""What DQN learns with: the replay, the target network, the loss over both, and the lesson."""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.algos import dqn
from stoker.collect.in_step import InStepCollector
from stoker.collect.interleaved import InterleavedCollector
from stoker.collect.on_device import DeviceCollector
from stoker.config.schema import Config
from stoker.kernels.descent import FlatDescent
from stoker.learn.q_learner import OneByOne, QGradient, QLearner, QUpdates
from stoker.nn.q_network import QNetwork
from stoker.storage.replay import Replay
from stoker.storage.rollout import RolloutStorage
from stoker.train.by_hand import is_plain
from stoker.train.overlap import Decision
from stoker.train.parts import Lesson
from stoker.train.policies import make_policy
from stoker.train.q_by_hand import QByHand
from stoker.train.sizes import as_size, memory_need
from stoker.types import EnvSpec, LearnReport, QLoss, Transitions

SAMPLED_APART = 2
"""Added to a run's seed for its sampling."""


def make_replay(config: Config, spec: EnvSpec, n_envs: int, device: torch.device) -> Replay:
    """On the device; observations on the host, where they do not fit there."""
    settings = config.dqn
    need = memory_need(config, spec, device)
    return Replay(
        spec,
        settings.buffer_size,
        n_envs,
        settings.n_step_return,
        settings.gamma,
        settings.per_alpha if settings.per else 0.0,
        device,
        torch.device("cpu") if need.spilled else device,
    )


def make_q_learner(
    config: Config, spec: EnvSpec, policy: QNetwork, replay: Replay, executor: str
) -> QLearner:
    """With a target network that begins as the policy, and shares its statistics."""
    device = replay.device
    target = make_policy(spec, config, device, config.run.seed)
    assert isinstance(target, QNetwork)
    target.load_state_dict(policy.state_dict())
    target.moments = policy.moments
    spilled, settings = replay.obs_device != device, config.dqn
    parameters = dict(policy.named_parameters())
    descent = FlatDescent(parameters, settings.adam_eps, settings.max_grad_norm)
    return QLearner(
        parameters,
        [parameter.requires_grad_(False).data for parameter in target.parameters()],
        _updates_of(policy, target, descent, config),
        descent,
        replay,
        settings,
        config.minibatch,
        config.run.seed + SAMPLED_APART,
        policy.epsilon,
        policy.noise_width,
        "eager" if spilled else executor,  # observations are asked for from the host
    )


def _updates_of(
    policy: QNetwork, target: QNetwork, descent: FlatDescent, config: Config
) -> QUpdates:
    """By hand where that pays, and is possible; else by autograd."""
    device = next(policy.parameters()).device
    if device.type == "cpu" and is_plain(policy):
        return QByHand(policy, target, descent, config.minibatch, config.dqn.double)
    return OneByOne(_gradient_by_autograd(policy, target, config.dqn.double), descent)


def _gradient_by_autograd(policy: QNetwork, target: QNetwork, double: bool) -> QGradient:
    def gradient(batch: Transitions, noise: Tensor | None) -> QLoss:
        size = len(batch.reward)
        now = {leaf: rows[:size] for leaf, rows in batch.obs.items()}
        then = {leaf: rows[size:] for leaf, rows in batch.obs.items()}
        first, second, third = (None, None, None) if noise is None else noise.unbind()
        with torch.no_grad():
            judged = policy.columns(target(then, first), batch.next_mask)
            chosen_by = policy.columns(policy(then, second), batch.next_mask) if double else judged
            aims = dqn.targets(judged, chosen_by, batch.reward, batch.discount)
        found = dqn.loss(policy.columns(policy(now, third), None), aims, batch)
        found.total.backward()
        return found

    return gradient


def q_lesson(
    policy: QNetwork, learner: QLearner, collector: InStepCollector | DeviceCollector
) -> Lesson:
    """Takes a rollout into the replay, then makes the updates that are due.

    Or leaves them to the collector, which has them made while it collects the next rollout; then
    what is reported is what came of those before.
    """

    def updates(steps: int) -> LearnReport:
        if not isinstance(collector, InterleavedCollector):
            return learner.learn(steps)
        before = learner.report()
        if not collector.on_last:
            learner.take(steps)
            return before
        report = learner.learn(steps)
        return report._replace(skipped=before.skipped + report.skipped)

    def lesson(storage: RolloutStorage) -> LearnReport:
        rollout, finals = storage.gathered()
        learner.replay.append(rollout, finals)
        report = updates(collector.steps)
        policy.update_moments(rollout.obs, rollout.valid)
        lag = (collector.version - rollout.policy_version).float()
        lags = {"lag/mean": lag.mean(), "lag/max": lag.amax()}
        return report._replace(metrics=report.metrics | lags)

    return lesson


def describe_replay(config: Config, replay: Replay) -> list[Decision]:
    """What is learned from, and how, in words."""
    settings = config.dqn
    switches = [
        "double" if settings.double else "",
        "dueling" if settings.dueling else "",
        f"{settings.n_step_return}-step" if settings.n_step_return > 1 else "",
        "noisy" if settings.exploration == "noisy" else "",
    ]
    seen = sum(rows.numel() * rows.element_size() for rows in replay.obs.values())
    spilled = replay.obs_device != replay.device
    where = "in the host's memory" if spilled else f"on the {replay.device.type}"
    return [
        Decision(
            "batch",
            f"{config.env.n_envs} x {settings.n_steps} steps = {config.total_batch:,}, then "
            f"{settings.update_ratio:g} updates a step of {config.minibatch:,} rows",
            f"from step {settings.learning_starts:,} on",
        ),
        Decision(
            "replay",
            f"{settings.buffer_size:,} steps, {as_size(seen)} of observations {where}",
            "prioritised" if settings.per else "all alike",
        ),
        Decision("algorithm", "dqn", ", ".join(filter(None, switches)) or "plain"),
    ]
