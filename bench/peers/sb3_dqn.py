"""Stable-Baselines3's DQN, once: `python -m bench.peers.sb3_dqn ENV STEPS SEED SETTINGS`.

SETTINGS is JSON by the names that Stoker has for them. Prints one JSON object: the evaluated
reward, and the seconds that training took.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

_EPISODES = 20
_ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}


def train(env: str, steps: int, seed: int, given: dict[str, Any]) -> dict[str, float]:
    """With as many environments, updates and moves of the target network as Stoker makes."""
    torch.set_num_threads(1)
    n_envs, n_steps = given["n_envs"], given["n_steps"]
    updates = round(given["update_ratio"] * n_envs * n_steps)
    network = {
        "net_arch": list(given["network_arch"]),
        "activation_fn": _ACTIVATIONS[given["activation"]],
    }
    model = DQN(
        "MlpPolicy",
        make_vec_env(env, n_envs, seed=seed),
        learning_rate=given["learning_rate"],
        buffer_size=given["buffer_size"],
        learning_starts=given["learning_starts"],
        batch_size=given["batch_size"],
        gamma=given["gamma"],
        train_freq=n_steps,
        gradient_steps=updates,
        n_steps=given["n_step_return"],
        # Its target moves while it collects, so at most once between the updates of two rollouts.
        target_update_interval=round(given["target_every"] / given["update_ratio"]),
        exploration_fraction=given["epsilon_fraction"],
        exploration_initial_eps=given["epsilon_start"],
        exploration_final_eps=given["epsilon_end"],
        max_grad_norm=given["max_grad_norm"],
        policy_kwargs=network,
        seed=seed,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(steps)
    wall_s = time.perf_counter() - began
    reward, _ = evaluate_policy(model, make_vec_env(env, 1, seed=seed + 10_000), _EPISODES)
    assert isinstance(reward, float)
    return {"reward": reward, "wall_s": wall_s}


if __name__ == "__main__":
    _env, _steps, _seed, _settings = sys.argv[1:]
    print(json.dumps(train(_env, int(_steps), int(_seed), json.loads(_settings))))
