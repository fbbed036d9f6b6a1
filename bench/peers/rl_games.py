"""rl_games: its `Runner` with its PPO."""

from __future__ import annotations

import tempfile
from typing import Any

from gymnasium import spaces
from rl_games.common import env_configurations, vecenv
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner
from torch import Tensor

from bench.peers import on_torch
from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, open_envs, set_up, wait

_KIND = "STOKER"


class Envs(IVecEnv):
    """Ours as rl_games takes environments; several discrete actions are a `Tuple` to it."""

    def __init__(self, envs: on_torch.Envs) -> None:
        self._envs = envs

    def reset(self) -> Tensor:
        return self._envs.obs

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        led_to = self._envs.step(actions[:, None] if actions.dim() == 1 else actions)
        return led_to.obs, led_to.reward, led_to.over, {"time_outs": led_to.truncated}

    def get_env_info(self) -> dict[str, Any]:
        actions = self._envs.action_space
        if len(self._envs.choices) > 1:
            actions = spaces.Tuple([spaces.Discrete(n) for n in self._envs.choices])
        known = {"observation_space": self._envs.observation_space, "action_space": actions}
        return known | {"agents": 1, "value_size": 1}


class Watch(AlgoObserver):
    """Is told of every iteration, and ends the run when nothing more is wanted."""

    def __init__(self, stretches: Stretches) -> None:
        super().__init__()
        self._stretches, self._last = stretches, 0

    def after_init(self, algo: Any) -> None:
        self._algo = algo

    def after_print_stats(self, frame: int, epoch_num: int, total_time: float) -> None:
        told_before, self._last = epoch_num == self._last, epoch_num  # it says so twice
        if told_before or epoch_num % self._stretches.task.iterations:
            return
        wait()
        if not self._stretches.after_round():
            self._algo.max_epochs = epoch_num


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    envs = open_envs(task)
    stretches.reward = envs.tally.read
    vecenv.register(_KIND, lambda *_, **__: Envs(envs))
    env_configurations.register(task.env, {"vecenv_type": _KIND, "env_creator": None})
    runner = Runner(Watch(stretches))
    with tempfile.TemporaryDirectory() as folder:
        runner.load({"params": _settings(task, folder, envs.choices)})
        runner.run({"train": True})
    envs.close()


def _kind(choices: tuple[int, ...]) -> tuple[str, str, dict[str, Any]]:
    """Its names for the algorithm and the model, and what it wants to know of the actions."""
    if len(choices) == 1:
        return "a2c_discrete", "discrete_a2c", {"discrete": None}
    if choices:
        return "a2c_discrete", "multi_discrete_a2c", {"multi_discrete": None}
    numbers = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": 0.0},
        "fixed_sigma": True,
    }
    return "a2c_continuous", "continuous_a2c_logstd", {"continuous": numbers}


def _settings(task: Task, folder: str, choices: tuple[int, ...]) -> dict[str, Any]:
    mlp = {"units": list(task.arch), "activation": "tanh", "initializer": {"name": "default"}}
    algorithm, model, space = _kind(choices)
    return {
        "seed": task.seed,
        "torch_threads": 1,
        "algo": {"name": algorithm},
        "model": {"name": model},
        "network": {"name": "actor_critic", "separate": True, "space": space, "mlp": mlp},
        "config": {
            "name": "peer",
            "env_name": task.env,
            "train_dir": folder,
            "device": str(DEVICE),
            "device_name": str(DEVICE),
            "ppo": True,
            "num_actors": task.envs,
            "horizon_length": task.steps,
            "minibatch_size": task.minibatch,
            "mini_epochs": task.epochs,
            "max_epochs": 10**9,
            "learning_rate": task.lr,
            "lr_schedule": None,
            "gamma": 0.99,
            "tau": 0.95,
            "e_clip": 0.2,
            "clip_value": False,
            "critic_coef": 1,
            "entropy_coef": 0.0,
            "bounds_loss_coef": 0.0,
            "truncate_grads": True,
            "grad_norm": 0.5,
            "normalize_advantage": True,
            "normalize_input": False,
            "normalize_value": False,
            "mixed_precision": task.precision == "bf16",
            "reward_shaper": {"scale_value": 1.0},
            "score_to_win": 10**9,
            "save_best_after": 10**9,
            "save_frequency": 0,
            "print_stats": False,
        },
    }


if __name__ == "__main__":
    main(train, "rl-games", "torch")
