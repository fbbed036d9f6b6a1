"""rl_games: its `Runner` with its PPO, on our tensor environments."""

from __future__ import annotations

import tempfile
from typing import Any

from rl_games.common import env_configurations, vecenv
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner
from torch import Tensor

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, open_envs, seen, set_up, wait

_KIND = "STOKER"


class Envs(IVecEnv):
    """Our pool as rl_games takes environments."""

    def __init__(self, name: str, n: int) -> None:
        self._env, self._pool = open_envs(name, n)

    def reset(self) -> Tensor:
        return seen(self._pool)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        led_to = self._pool.advance(actions[:, None])
        over = led_to.terminated | led_to.truncated
        return seen(self._pool), led_to.reward, over, {"time_outs": led_to.truncated}

    def get_env_info(self) -> dict[str, Any]:
        spaces = ("observation_space", "action_space")
        return {name: getattr(self._env, name) for name in spaces} | {"agents": 1, "value_size": 1}


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
    vecenv.register(_KIND, lambda name, n, **_: Envs(name, n))
    env_configurations.register(task.env, {"vecenv_type": _KIND, "env_creator": None})
    runner = Runner(Watch(stretches))
    set_up(task.precision)
    with tempfile.TemporaryDirectory() as folder:
        runner.load({"params": _settings(task, folder)})
        runner.run({"train": True})


def _settings(task: Task, folder: str) -> dict[str, Any]:
    mlp = {"units": list(task.arch), "activation": "tanh", "initializer": {"name": "default"}}
    return {
        "torch_threads": 1,
        "algo": {"name": "a2c_discrete"},
        "model": {"name": "discrete_a2c"},
        "network": {
            "name": "actor_critic",
            "separate": True,
            "space": {"discrete": None},
            "mlp": mlp,
        },
        "config": {
            "name": "peer",
            "env_name": task.env,
            "train_dir": folder,
            "device": str(DEVICE),
            "device_name": str(DEVICE),
            "ppo": True,
            "num_actors": task.envs,
            "horizon_length": task.steps,
            "minibatch_size": task.batch // 4,
            "mini_epochs": 4,
            "max_epochs": 10**9,
            "learning_rate": 3e-4,
            "lr_schedule": None,
            "gamma": 0.99,
            "tau": 0.95,
            "e_clip": 0.2,
            "clip_value": False,
            "critic_coef": 1,
            "entropy_coef": 0.0,
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
