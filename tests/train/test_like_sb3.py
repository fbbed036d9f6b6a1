"""From the same weights and the same steps, updates lead where Stable-Baselines3's lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stoker.config import resolve
from stoker.nn.q_network import QNetwork
from stoker.train.build import build
from stoker.train.parts import Parts
from stoker.types import PLAIN, Rollout, Transitions

sb3 = pytest.importorskip("stable_baselines3")

N_ENVS, N_STEPS, LIMIT = 4, 32, 12
"""Episodes of CartPole that do not fall in twelve steps are truncated: both ends occur."""
ROWS = N_ENVS * N_STEPS
SAME = {"learning_rate": 3e-3, "gamma": 0.9, "max_grad_norm": 0.5}
PPO = {"n_steps": N_STEPS, "batch_size": ROWS, "n_epochs": 6, "gae_lambda": 0.8, **SAME}
PPO |= {"ent_coef": 0.01, "vf_coef": 0.7, "clip_range": 0.02, "target_kl": None}


def short_cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)


def linears(*modules: nn.Module) -> Iterator[nn.Linear]:
    for module in modules:
        yield from (each for each in module.modules() if isinstance(each, nn.Linear))


def copy(to: list[nn.Linear], of: list[nn.Linear]) -> None:
    for mine, other in zip(to, of, strict=True):
        mine.load_state_dict(other.state_dict())


def as_ours(model: Any, last_value: Tensor) -> Rollout:
    """SB3's rollout. It adds what a truncated episode would have gone on to be worth to the last
    reward; CartPole's are all 1, so that can be told apart again."""
    buffer = model.rollout_buffer
    reward, value, log_prob = (
        torch.from_numpy(x.copy()) for x in (buffer.rewards, buffer.values, buffer.log_probs)
    )
    over = np.concatenate([buffer.episode_starts[1:], model._last_episode_starts[None]]) > 0
    truncated = reward != 1.0
    assert truncated.any()
    assert (torch.from_numpy(over) & ~truncated).any(), "some fall"
    return Rollout(
        obs={PLAIN: torch.from_numpy(buffer.observations.copy())},
        action=torch.from_numpy(buffer.actions.copy()).long(),
        action_mask=None,
        behaviour_log_prob=log_prob,
        policy_version=torch.zeros(N_STEPS, N_ENVS, dtype=torch.int64),
        log_prob=log_prob,
        value=value,
        reward=torch.ones_like(reward),
        terminated=torch.from_numpy(over) & ~truncated,
        truncated=truncated,
        final_value=(reward - 1.0) / PPO["gamma"],
        valid=torch.ones(N_STEPS, N_ENVS, dtype=torch.bool),
        last_value=last_value,
        chosen=None,
    )


def built(algo: str, settings: Mapping[str, Any]) -> Parts:
    alike = {"algo": algo, "env": "CartPole-v1", "network_arch": (64, 64), "device": "cpu"}
    return build(resolve({**alike, "pool": "inline", "seed": 1, **settings}, on_gpu=False))


@pytest.mark.parametrize("normalised", [False, True])
def test_ppo_goes_the_same_way(normalised: bool) -> None:
    """With advantages normalised, by the deviation of these rows and not of all there might be:
    those of 128 rows differ by 0.4 %."""
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(short_cartpole, N_ENVS, seed=5)
    model = sb3.PPO("MlpPolicy", envs, normalize_advantage=normalised, seed=5, device="cpu", **PPO)
    _, callback = model._setup_learn(ROWS)
    model.collect_rollouts(envs, callback, model.rollout_buffer, N_STEPS)
    with torch.no_grad():
        last_value = model.policy.predict_values(torch.from_numpy(model._last_obs)).flatten()
    rollout = as_ours(model, last_value)

    plain = {"normalize_obs": False, "normalize_reward": False, "lr_schedule": "constant"}
    parts = built("ppo", {**PPO, **plain, "n_envs": N_ENVS, "normalize_advantage": normalised})
    policy = parts.actor_critics[0]
    mine = list(linears(policy.actor, policy.critic, policy.decide, policy.judge))
    extractor = model.policy.mlp_extractor
    theirs = list(
        linears(
            extractor.policy_net,
            extractor.value_net,
            model.policy.action_net,
            model.policy.value_net,
        )
    )
    copy(mine, theirs)
    before = [each.weight.detach().clone() for each in mine]
    model.train()
    parts.learner.learn(rollout, 0)
    parts.close()

    assert model.logger.name_to_value["train/clip_fraction"] > 0.1
    for was, ours, other in zip(before, mine, theirs, strict=True):
        moved = (other.weight - was).abs().max()
        assert moved > 2e-3
        gap = (ours.weight - other.weight).abs().max()
        assert gap < moved * (0.01 if normalised else 1e-4)


def test_dqn_goes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    size, updates = 32, 5
    settings = {**SAME, "batch_size": size, "buffer_size": 1000}
    network = {"net_arch": [64, 64]}
    model = sb3.DQN(
        "MlpPolicy", short_cartpole(), policy_kwargs=network, seed=5, device="cpu", **settings
    )
    model._setup_learn(100)
    numbers = torch.Generator().manual_seed(3)
    now, then = torch.randn(2, size, 4, generator=numbers)
    action = torch.randint(2, (size, 1), generator=numbers)
    dones = (torch.rand(size, 1, generator=numbers) < 0.3).float()
    reward = 3 * torch.randn(size, 1, generator=numbers)  # past where Huber's loss is a parabola
    drawn = ReplayBufferSamples(now, action, then, dones, reward)
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: drawn)

    alike = {"n_step_return": 1, "double": False, "lr_schedule": "constant", "ortho_init": False}
    parts = built("dqn", {**settings, **alike, "activation": "relu", "n_envs": 1})
    policy, learner = parts.policy, parts.learner
    assert isinstance(policy, QNetwork)
    mine, theirs = list(linears(policy)), list(linears(model.q_net))
    copy(mine, theirs)
    learner._move_target()
    before = [each.weight.detach().clone() for each in mine]
    batch = Transitions(
        obs={PLAIN: torch.cat([now, then])},
        action=action,
        next_mask=None,
        reward=reward[:, 0],
        discount=SAME["gamma"] * (1 - dones[:, 0]),
        weight=torch.ones(size),
    )
    model.train(updates, size)
    learner._descent.begin()
    for _ in range(updates):
        for _ in learner._make(batch, None, learner.learning_rate):
            pass
    parts.close()

    for was, ours, other in zip(before, mine, theirs, strict=True):
        moved = (other.weight - was).abs().max()
        assert moved > 2e-3
        assert (ours.weight - other.weight).abs().max() < 1e-4 * moved
