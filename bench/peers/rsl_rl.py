"""rsl_rl: its `OnPolicyRunner` with its PPO.

It knows continuous actions alone, so the sign of one decides between two, as of CartPole.
"""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

from bench.peers import on_torch
from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, open_envs, set_up, wait, width_of


class Envs(VecEnv):
    """Ours as rsl_rl takes environments."""

    max_episode_length = 500

    def __init__(self, envs: on_torch.Envs) -> None:
        assert envs.choices in ((2,), ()), "only for two actions, or for those that are numbers"
        self.num_actions = 1 if envs.choices else width_of(envs.action_space)
        self._envs, self.num_envs, self.device = envs, envs.n, DEVICE
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(envs.n, dtype=torch.int64, device=DEVICE)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self._envs.obs}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        led_to = self._envs.step((actions > 0).long() if self._envs.choices else actions)
        over = led_to.over.long()
        return self.get_observations(), led_to.reward, over, {"time_outs": led_to.truncated}


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    envs = open_envs(task)
    stretches.reward = envs.tally.read
    net = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": list(task.arch),
        "activation": "tanh",
    }
    noise = {"class_name": "rsl_rl.modules.GaussianDistribution", "init_std": 1.0}
    settings = {
        "algorithm": {
            "class_name": "rsl_rl.algorithms.PPO",
            "num_learning_epochs": task.epochs,
            "num_mini_batches": task.minibatches,
            "schedule": "fixed",
            "learning_rate": task.lr,
            "use_mixed_precision": task.precision == "bf16",
        },
        "actor": {**net, "distribution_cfg": noise},
        "critic": dict(net),
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "num_steps_per_env": task.steps,
        "save_interval": 10**9,
        "torch_compile_mode": "default" if task.own else None,
    }
    runner = OnPolicyRunner(Envs(envs), settings, log_dir=None, device=str(DEVICE))

    def once() -> None:
        with redirect_stdout(StringIO()):  # a page an iteration
            runner.learn(task.iterations)
        wait()

    stretches.run(once)
    envs.close()


if __name__ == "__main__":
    main(train, "rsl-rl-lib", "tensordict", "torch")
