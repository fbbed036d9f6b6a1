"""Policies: one for each algorithm, made from a seed, on a device."""

from __future__ import annotations

import torch

from stoker.config.schema import Config, DQNSettings, PPOSettings
from stoker.errors import ConfigError
from stoker.nn.actor_critic import ActorCritic
from stoker.nn.q_network import QNetwork
from stoker.types import EnvSpec

TrainedPolicy = ActorCritic | QNetwork


def make_policy(spec: EnvSpec, config: Config, device: torch.device, seed: int) -> TrainedPolicy:
    """A new policy whose weights and noise follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = bare_policy(spec, config).to(device)
    policy.seed(seed + 1, device)
    return policy


def make_actor_critic(
    spec: EnvSpec, config: Config, device: torch.device, seed: int
) -> ActorCritic:
    """The same, where the algorithm is PPO."""
    policy = make_policy(spec, config, device, seed)
    assert isinstance(policy, ActorCritic)
    return policy


def bare_policy(spec: EnvSpec, config: Config) -> TrainedPolicy:
    """On torch's default device, from torch's own numbers."""
    match config.learning:
        case DQNSettings() as dqn:
            noisy = dqn.exploration == "noisy"
            network = QNetwork(spec, config.network, dqn.normalize_obs, dqn.dueling, noisy)
            network.epsilon.fill_(0.0 if noisy else dqn.epsilon_start)
            return network
        case PPOSettings() as ppo:
            return ActorCritic(spec, config.network, ppo.normalize_obs)
    raise AssertionError(f"an algorithm without a policy: {config.learning.algo}")


def check_actions(config: Config, spec: EnvSpec) -> None:
    """Refuse an algorithm that cannot do the environment's actions."""
    if config.learning.algo == "dqn" and not spec.action.nvec:
        kinds = {"box": "continuous (Box)", "multi_binary": "MultiBinary"}
        raise ConfigError(
            f"algo is dqn, and the actions of {spec.name} are {kinds[spec.action.kind]}: DQN "
            "compares a few choices, so they must be Discrete or MultiDiscrete. Use algo ppo."
        )
