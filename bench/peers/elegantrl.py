"""ElegantRL: its `train_agent` with its `AgentPPO`, and its own processes (`VecEnv`).

Its agent for discrete actions does not take vectors of environments, so the sign of a number
decides between two. Its evaluations, which it cannot leave out, are of an episode of one step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from elegantrl.agents import AgentPPO
from elegantrl.train import Config, train_agent
from torch import Tensor

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, OnDevice, Tally, choices_of, set_up, spaces_of, wait
from stoker.envs.registry import EnvFactory

Step = tuple[Any, Any, Any, Any]


class Tensors:
    """Tensor environments as ElegantRL takes vectors of them."""

    task: Task  # set before one is made

    def __init__(self) -> None:
        self._envs = OnDevice(self.task)

    def reset(self) -> Tensor:
        return self._envs.obs

    def step(self, action: Tensor) -> Step:
        led_to = self._envs.step((action > 0).long())
        return led_to.obs, led_to.reward, led_to.over, {}


class One:
    """A Gymnasium environment as ElegantRL takes one, in a process of its own."""

    def __init__(self, env_name: str) -> None:
        self._env = EnvFactory(env_name).unchecked()()
        self._two = bool(choices_of(self._env.action_space))

    def reset(self) -> np.ndarray:
        return np.asarray(self._env.reset()[0], np.float32)

    def step(self, action: np.ndarray) -> Step:
        obs, reward, terminated, truncated, _ = self._env.step(self._meant(action))
        return np.asarray(obs, np.float32), float(reward), terminated or truncated, {}

    def _meant(self, action: np.ndarray) -> Any:
        if self._two:
            return int(action[0] > 0)
        space = self._env.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        return space.low + (action + 1) / 2 * (space.high - space.low)  # it gives -1 to 1


class Brief:
    """To be evaluated on: an episode is over at once."""

    def __init__(self, state_dim: int) -> None:
        self._seen = np.zeros(state_dim, np.float32)

    def reset(self) -> np.ndarray:
        return self._seen

    def step(self, action: Any) -> Step:
        return self._seen, 0.0, True, {}


def _agent(stretches: Stretches, tally: Tally, folder: Path) -> type[AgentPPO]:
    """Its agent, which says after every update how far it is."""

    class WatchedPPO(AgentPPO):
        iterations = 0

        def update_net(self, buffer: Any) -> tuple[float, ...]:
            found = super().update_net(buffer)
            task = stretches.task
            if task.learn_steps:
                tally.add_rollout(buffer[3], buffer[4] == 0)
            self.iterations += 1
            if self.iterations % task.iterations == 0:
                wait()
                if not stretches.after_round():
                    (folder / "stop").touch()  # which is how it is told to
            return found

    return WatchedPPO


def _settings(task: Task, agent: type[AgentPPO], folder: Path) -> Config:
    spaces = spaces_of(task.env)
    assert spaces.choices in ((2,), ()), "only for two actions, or for those that are numbers"
    outputs = 1 if spaces.choices else spaces.done
    known = {"state_dim": spaces.seen, "action_dim": outputs, "if_discrete": False, "max_step": 10}
    tensors = task.env.startswith("tensor/")
    processes = {} if tensors else {"if_build_vec_env": True}
    args = {"env_name": task.env, "num_envs": task.envs, **known, **processes}
    config = Config(agent, Tensors if tensors else One, args)
    config.eval_env_class = Brief
    config.eval_env_args = {"env_name": "brief", "num_envs": 1, **known}
    config.gpu_id = 0 if DEVICE.type == "cuda" else -1
    config.net_dims = list(task.arch)
    config.horizon_len = task.steps
    config.batch_size = task.minibatch
    # It makes horizon * repeats / batch updates.
    config.repeat_times = task.epochs * task.minibatches * task.minibatch / task.steps
    config.learning_rate = task.lr
    config.random_seed = task.seed
    config.num_threads = 1
    config.eval_per_step = 10**12
    config.cwd = str(folder)
    return config


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    Tensors.task = task
    tally = Tally(task.envs)
    stretches.reward = tally.read
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        train_agent(_settings(task, _agent(stretches, tally, folder), folder))


if __name__ == "__main__":
    main(train, "elegantrl", "torch")
