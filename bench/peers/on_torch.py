"""What peers that are written in torch are given: the device, and environments as tensors.

Tensor environments step on the device. Others step in the processes of Gymnasium's
`AsyncVectorEnv`, for peers that leave that to the user, and cross over at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.peers.child import Stretches, Task
from stoker.collect.on_device import DeviceEpisodes, count_episodes
from stoker.envs.registry import EnvFactory, is_device_vector
from stoker.pools.tensor import TensorPool, describe_tensor_env
from stoker.types import PLAIN

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_up(task: Task, stretches: Stretches) -> None:
    """TF32, unless float32 is asked for to the last bit; and one thread on the CPU, as ours has.

    Whoever learns has its optimisers' steps counted.
    """
    if task.learn_steps:
        made: list[None] = []
        register_optimizer_step_post_hook(lambda *_: made.append(None))
        stretches.updates = lambda: len(made)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest" if task.precision == "fp32" else "high")
    torch.manual_seed(task.seed)
    np.random.seed(task.seed)


def wait() -> None:
    """Until the device is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Moved(NamedTuple):
    """What a step of everyone led to; where an episode is over, `obs` is the next one's first."""

    obs: Tensor  # [N, width]
    reward: Tensor  # [N]
    terminated: Tensor  # [N]
    truncated: Tensor  # [N]
    final_obs: Tensor  # [N, width], of what was before the next one began

    @property
    def over(self) -> Tensor:
        return self.terminated | self.truncated


class Tally:
    """The reward of the last hundred episodes, as a run of ours has it; free until read."""

    def __init__(self, n_envs: int, device: torch.device = DEVICE) -> None:
        self._episodes = DeviceEpisodes(n_envs, device)
        self._rows: list[tuple[Tensor, Tensor]] = []

    def add(self, reward: Tensor, over: Tensor) -> None:
        """Of one step, [N]; neither is changed any more."""
        self._rows.append((reward, over))

    def add_rollout(self, reward: Tensor, over: Tensor) -> None:
        """Of several, [T, N]."""
        count_episodes(self._episodes.held, reward, over)

    def read(self) -> float | None:
        """None before an episode has ended."""
        if self._rows:
            rewards, overs = zip(*self._rows, strict=True)
            self._rows.clear()
            self.add_rollout(torch.stack(rewards), torch.stack(overs))
        return self._episodes.metrics().get("rollout/ep_rew_mean")


class Spaces(NamedTuple):
    """What an environment shows and takes."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    @property
    def choices(self) -> tuple[int, ...]:
        """How many values each column of an action has; () where they are no whole numbers."""
        return choices_of(self.action_space)

    @property
    def seen(self) -> int:
        """Numbers of an observation."""
        return width_of(self.observation_space)

    @property
    def done(self) -> int:
        """Numbers of an action that is not of whole ones."""
        return width_of(self.action_space)


def spaces_of(env: str) -> Spaces:
    """One is made to find out."""
    made: Any = EnvFactory(env).make()
    return Spaces(made.observation_space, made.action_space)


class Envs:
    """Many of an environment, that have begun; `step` takes actions [N, A]."""

    def __init__(self, task: Task, spaces: Any) -> None:
        self.n = task.envs
        self.observation_space: gymnasium.Space[Any] = spaces.observation_space
        self.action_space: gymnasium.Space[Any] = spaces.action_space
        self.choices = choices_of(self.action_space)
        self.tally = Tally(task.envs)
        self._counts = bool(task.learn_steps)

    @property
    def obs(self) -> Tensor:
        """What everyone sees, [N, width]."""
        raise NotImplementedError

    def step(self, actions: Tensor) -> Moved:
        """Whoever's episode is over begins the next one."""
        moved = self._step(actions)
        if self._counts:
            self.tally.add(moved.reward, moved.over)
        return moved

    def _step(self, actions: Tensor) -> Moved:
        raise NotImplementedError

    def close(self) -> None:
        """End what was started."""


class OnDevice(Envs):
    """A tensor environment."""

    def __init__(self, task: Task) -> None:
        env = EnvFactory(task.env).make()
        assert not isinstance(env, gymnasium.Env), f"{task.env} is not a tensor environment"
        assert not is_device_vector(env), f"{task.env} steps by itself"
        super().__init__(task, env)
        self._pool = TensorPool(env, describe_tensor_env(task.env, env), task.envs, DEVICE)
        self._pool.begin(task.seed)

    @property
    def obs(self) -> Tensor:
        return self._pool.obs[PLAIN]

    def _step(self, actions: Tensor) -> Moved:
        row = self._pool.advance(actions)
        ended = row.terminated, row.truncated
        return Moved(row.obs[PLAIN], row.reward, *ended, row.final_obs[PLAIN])


class InProcesses(Envs):
    """Gymnasium environments, one a process; or all in this one, one after the other (`sync`)."""

    def __init__(self, task: Task, sync: bool = False) -> None:
        make: Callable[..., Any] = SyncVectorEnv if sync else AsyncVectorEnv
        factories = [EnvFactory(task.env).unchecked()] * task.envs
        self._vector = make(factories, autoreset_mode=AutoresetMode.SAME_STEP)
        single = self._vector
        super().__init__(task, Spaces(single.single_observation_space, single.single_action_space))
        seen, _ = self._vector.reset(seed=task.seed)
        self._obs = self._across(seen)

    @property
    def obs(self) -> Tensor:
        return self._obs

    def _step(self, actions: Tensor) -> Moved:
        chosen = actions.detach().cpu().numpy()
        if not self.choices:
            chosen = chosen.clip(self._vector.action_space.low, self._vector.action_space.high)
        elif isinstance(self.action_space, gymnasium.spaces.Discrete):
            chosen = chosen[:, 0]
        seen, reward, terminated, truncated, info = self._vector.step(chosen)
        self._obs = final = self._across(seen)
        if "final_obs" in info:
            last = np.array(seen, np.float32)
            for row in np.flatnonzero(info["_final_obs"]):
                last[row] = info["final_obs"][row]
            final = self._across(last)
        ended, late = (torch.from_numpy(x.copy()).to(DEVICE) for x in (terminated, truncated))
        return Moved(self._obs, self._across(reward), ended, late, final)

    @staticmethod
    def _across(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(DEVICE)

    def close(self) -> None:
        self._vector.close()


def open_envs(task: Task) -> Envs:
    """As the environment is written; `task.executor` may ask for `sync`."""
    if task.env.startswith("tensor/"):
        return OnDevice(task)
    return InProcesses(task, sync=task.executor == "sync")


def choices_of(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    """How many values each column of an action has; () where they are no whole numbers."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec)
    return ()


def width_of(space: gymnasium.Space[Any]) -> int:
    """Numbers of an observation, or of an action that is not of whole numbers."""
    assert space.shape is not None
    return int(np.prod(space.shape))


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Layers with tanh between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))
