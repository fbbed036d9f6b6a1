"""rsl_rl: its `OnPolicyRunner` with its PPO, on our tensor environments.

It knows continuous actions alone, so the sign of one decides between the two of CartPole.
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

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, open_envs, seen, set_up, wait
from stoker.pools.tensor import TensorPool


class Envs(VecEnv):
    """Our pool as rsl_rl takes environments."""

    num_actions, max_episode_length = 1, 500

    def __init__(self, pool: TensorPool) -> None:
        assert pool.spec.action.nvec == (2,), "only for environments with two actions"
        self._pool, self.num_envs, self.device = pool, pool.n_envs, DEVICE
        self.cfg: dict[str, Any] = {}
        self.episode_length_buf = torch.zeros(pool.n_envs, dtype=torch.int64, device=DEVICE)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": seen(self._pool)}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        led_to = self._pool.advance((actions > 0).long())
        over = (led_to.terminated | led_to.truncated).long()
        return self.get_observations(), led_to.reward, over, {"time_outs": led_to.truncated}


def train(task: Task, stretches: Stretches) -> None:
    set_up(task.precision)
    _, pool = open_envs(task.env, task.envs)
    net = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": list(task.arch),
        "activation": "tanh",
    }
    noise = {"class_name": "rsl_rl.modules.GaussianDistribution", "init_std": 1.0}
    settings = {
        "algorithm": {
            "class_name": "rsl_rl.algorithms.PPO",
            "num_learning_epochs": 4,
            "num_mini_batches": 4,
            "schedule": "fixed",
            "learning_rate": 3e-4,
            "use_mixed_precision": task.precision == "bf16",
        },
        "actor": {**net, "distribution_cfg": noise},
        "critic": dict(net),
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "num_steps_per_env": task.steps,
        "save_interval": 10**9,
    }
    runner = OnPolicyRunner(Envs(pool), settings, log_dir=None, device=str(DEVICE))

    def once() -> None:
        with redirect_stdout(StringIO()):  # a page an iteration
            runner.learn(task.iterations)
        wait()

    stretches.run(once)


if __name__ == "__main__":
    main(train, "rsl-rl-lib", "tensordict", "torch")
