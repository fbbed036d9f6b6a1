"""skrl: its `SequentialTrainer` with its PPO."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import Wrapper
from skrl.memories.torch import RandomMemory
from skrl.models.torch import (
    CategoricalMixin,
    DeterministicMixin,
    GaussianMixin,
    Model,
    MultiCategoricalMixin,
)
from skrl.trainers.torch import SequentialTrainer
from torch import Tensor

from bench.peers import on_torch
from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, network, open_envs, set_up, wait, width_of


class Envs(Wrapper):
    """Ours as skrl takes environments."""

    def __init__(self, envs: on_torch.Envs) -> None:
        super().__init__(envs)  # which has the spaces
        self._envs, self._device = envs, DEVICE

    @property
    def num_envs(self) -> int:
        return self._envs.n

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        return self._envs.obs, {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        led_to = self._envs.step(actions)
        ended = led_to.terminated[:, None], led_to.truncated[:, None]
        return led_to.obs, led_to.reward[:, None], *ended, {}

    def state(self) -> None:
        """There is none besides what is seen."""

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to look at."""

    def close(self) -> None:
        """Nothing is open."""


class _Network(Model):
    def __init__(self, envs: Envs, arch: tuple[int, ...], outputs: int) -> None:
        spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space}
        Model.__init__(self, **spaces, device=DEVICE)
        self.net = network(self.num_observations, arch, outputs)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class Actor(CategoricalMixin, _Network):
    def __init__(self, *given: Any) -> None:
        _Network.__init__(self, *given)
        CategoricalMixin.__init__(self, unnormalized_log_prob=True)


class ActorOfMany(MultiCategoricalMixin, _Network):
    def __init__(self, *given: Any) -> None:
        _Network.__init__(self, *given)
        MultiCategoricalMixin.__init__(self, unnormalized_log_prob=True)


class ActorOfNumbers(GaussianMixin, _Network):
    def __init__(self, *given: Any) -> None:
        _Network.__init__(self, *given)
        GaussianMixin.__init__(self)
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, _Network):
    def __init__(self, *given: Any) -> None:
        _Network.__init__(self, *given)
        DeterministicMixin.__init__(self)


def _actor(envs: Envs, arch: tuple[int, ...], choices: tuple[int, ...]) -> Model:
    if not choices:
        return ActorOfNumbers(envs, arch, width_of(envs.action_space))
    return (Actor if len(choices) == 1 else ActorOfMany)(envs, arch, sum(choices))


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    ours = open_envs(task)
    envs = Envs(ours)
    actor = _actor(envs, task.arch, ours.choices)
    stretches.reward = ours.tally.read
    with tempfile.TemporaryDirectory() as folder:
        settings = PPO_CFG(
            rollouts=task.steps,
            learning_epochs=task.epochs,
            mini_batches=task.minibatches,
            learning_rate=task.lr,
            mixed_precision=task.precision == "bf16",
        )
        settings.experiment.directory = folder
        settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
        agent = PPO(
            models={"policy": actor, "value": Critic(envs, task.arch, 1)},
            memory=RandomMemory(memory_size=task.steps, num_envs=task.envs, device=DEVICE),
            cfg=settings,
            observation_space=envs.observation_space,
            action_space=envs.action_space,
            device=DEVICE,
        )
        how_long = {"timesteps": task.iterations * task.steps, "headless": True}
        trainer = SequentialTrainer(
            env=envs, agents=agent, cfg={**how_long, "disable_progressbar": True}
        )

        def once() -> None:
            trainer.train()
            wait()

        stretches.run(once)
    ours.close()


if __name__ == "__main__":
    main(train, "skrl", "torch")
