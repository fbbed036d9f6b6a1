"""Stable-Baselines3: its PPO, with its own processes (`SubprocVecEnv`) or on tensor environments.

Those cross over to the host and back at every step, since it keeps all it collects there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, OnDevice, Tally, set_up, wait
from stoker.envs.registry import EnvFactory


class Tensors(VecEnv):
    """Tensor environments as SB3 takes vectors of them."""

    def __init__(self, envs: OnDevice) -> None:
        self._envs = envs
        self._actions = torch.zeros(0)
        super().__init__(envs.n, envs.observation_space, envs.action_space)

    def reset(self) -> np.ndarray:
        return self._envs.obs.cpu().numpy()

    def step_async(self, actions: np.ndarray) -> None:
        columns = actions[:, None] if actions.ndim == 1 else actions
        self._actions = torch.from_numpy(columns).to(DEVICE)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        led_to = self._envs.step(self._actions)
        obs, reward, _, truncated, final = (part.cpu().numpy() for part in led_to)
        over = led_to.over.cpu().numpy()
        infos: list[dict[str, Any]] = [{} for _ in over]
        for row in np.flatnonzero(over):
            known = {"terminal_observation": final[row], "TimeLimit.truncated": truncated[row]}
            infos[row] = known
        return obs, reward, over, infos

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self._how_many(indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Nothing has any."""

    def env_method(self, method_name: str, *_: Any, indices: Any = None, **__: Any) -> list[Any]:
        return [None] * self._how_many(indices)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self._how_many(indices)

    def _how_many(self, indices: int | Sequence[int] | None) -> int:
        return len(list(self._get_indices(indices)))


class Watch(BaseCallback):
    """An update is over when the next rollout begins."""

    def __init__(self, stretches: Stretches, tally: Tally) -> None:
        super().__init__()
        self._stretches, self._tally = stretches, tally
        self._iterations, self._wanted = -1, True

    def _on_rollout_start(self) -> None:
        self._iterations += 1
        if self._iterations and self._iterations % self._stretches.task.iterations == 0:
            wait()
            self._wanted = self._stretches.after_round()

    def _on_step(self) -> bool:
        if self._stretches.task.learn_steps:
            rows = (torch.from_numpy(self.locals[name].copy()) for name in ("rewards", "dones"))
            self._tally.add(*rows)
        return self._wanted


def _open(task: Task) -> VecEnv:
    if task.env.startswith("tensor/"):
        return Tensors(OnDevice(task))
    kind = DummyVecEnv if task.executor == "sync" else SubprocVecEnv
    return kind([EnvFactory(task.env).unchecked()] * task.envs)


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    tally = Tally(task.envs, torch.device("cpu"))
    stretches.reward = tally.read
    envs = _open(task)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=task.steps,
        batch_size=task.minibatch,
        n_epochs=task.epochs,
        learning_rate=task.lr,
        policy_kwargs={"net_arch": list(task.arch)},
        device="cpu" if task.own else DEVICE,  # which it advises for networks without images
        seed=task.seed,
    )
    try:
        model.learn(10**15, callback=Watch(stretches, tally))
    finally:
        envs.close()


if __name__ == "__main__":
    main(train, "stable-baselines3", "torch")
