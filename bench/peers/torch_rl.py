"""TorchRL: its `PPOTrainer` over its `Collector`, and its own processes (`ParallelEnv`)."""

from __future__ import annotations

from typing import Any

import torch
import torchrl.collectors
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent
from torchrl.data import (
    Bounded,
    Composite,
    LazyTensorStorage,
    MultiCategorical,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import DoubleToFloat, EnvBase, GymWrapper, ParallelEnv, SerialEnv, TransformedEnv
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.trainers.algorithms.ppo import PPOTrainer

from bench.peers.child import Stretches, Task, main
from bench.peers.on_torch import DEVICE, OnDevice, Tally, network, set_up, spaces_of, wait, width_of
from stoker.envs.registry import EnvFactory

_FOR_EVER = 10**15
_COLLECTORS: Any = torchrl.collectors
_COLLECTOR = getattr(_COLLECTORS, "Collector", None) or _COLLECTORS.SyncDataCollector
"""Older versions have it by its second name alone."""


class Tensors(EnvBase):
    """Tensor environments as TorchRL takes a batch of them; those whose episode is over have
    begun the next one by the time it resets them."""

    def __init__(self, envs: OnDevice) -> None:
        super().__init__(device=DEVICE, batch_size=torch.Size([envs.n]))
        self._envs = envs
        n, columns = envs.n, len(envs.choices)
        nvec = torch.tensor(envs.choices, device=DEVICE)
        width = width_of(envs.observation_space)
        self.observation_spec = Composite(
            observation=Unbounded((n, width), device=DEVICE), shape=(n,), device=DEVICE
        )
        self.action_spec = MultiCategorical(
            nvec, shape=(n, columns), device=DEVICE, dtype=torch.int64
        )
        self.reward_spec = Unbounded((n, 1), device=DEVICE)
        flag = Bounded(0, 1, (n, 1), dtype=torch.bool, device=DEVICE)
        self.done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(n,), device=DEVICE
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        return TensorDict({"observation": self._envs.obs}, self.batch_size, device=DEVICE)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        led_to = self._envs.step(tensordict["action"])
        ended = {"terminated": led_to.terminated, "truncated": led_to.truncated}
        found = {"reward": led_to.reward, "done": led_to.over, **ended}
        columns = {name: value[:, None] for name, value in found.items()}
        seen = {"observation": led_to.final_obs}
        return TensorDict({**seen, **columns}, self.batch_size, device=DEVICE)

    def _set_seed(self, seed: int | None) -> None:
        """They have begun from theirs."""


class Columns(Distribution):
    """Several discrete actions [..., A] as one, from logits [..., A * choices]."""

    def __new__(cls, logits: Tensor, columns: int) -> Any:
        return Independent(Categorical(logits=logits.unflatten(-1, (columns, -1))), 1)


def _gymnasium(name: str) -> EnvBase:
    env = GymWrapper(EnvFactory(name).unchecked()(), categorical_action_encoding=True)
    return TransformedEnv(env, DoubleToFloat())


def _open(task: Task) -> EnvBase:
    if task.env.startswith("tensor/"):
        return Tensors(OnDevice(task))
    kind = SerialEnv if task.executor == "sync" else ParallelEnv
    return kind(task.envs, lambda: _gymnasium(task.env))


def _actor(task: Task, env: EnvBase) -> ProbabilisticActor:
    spaces = spaces_of(task.env)
    choices, kind = spaces.choices, dict[str, Any]()
    if choices:
        net: nn.Module = network(spaces.seen, task.arch, sum(choices))
        keys, kind = ["logits"], {"distribution_class": Categorical}
        if len(choices) > 1 or isinstance(env, Tensors):
            columns = {"columns": len(choices)}
            kind = {"distribution_class": Columns, "distribution_kwargs": columns}
    else:
        net = network(spaces.seen, task.arch, spaces.done)
        net = nn.Sequential(net, AddStateIndependentNormalScale(spaces.done, scale_lb=1e-8))
        keys, kind = ["loc", "scale"], {"distribution_class": IndependentNormal}
    module = TensorDictModule(net.to(DEVICE), in_keys=["observation"], out_keys=keys)
    spec = env.full_action_spec_unbatched.to(DEVICE)
    return ProbabilisticActor(module, in_keys=keys, spec=spec, return_log_prob=True, **kind)


def train(task: Task, stretches: Stretches) -> None:
    set_up(task, stretches)
    env = _open(task)
    actor = _actor(task, env)
    width = env.observation_spec["observation"].shape[-1]
    critic = ValueOperator(network(width, task.arch, 1).to(DEVICE), in_keys=["observation"])
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_bonus=False, normalize_advantage=True
    )
    collector = _COLLECTOR(
        env,
        actor,
        frames_per_batch=task.batch,
        total_frames=_FOR_EVER,
        policy_device=DEVICE,
        env_device=env.device,
        storing_device=DEVICE,
        compile_policy={"mode": "default"} if task.own else False,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(task.batch, device=DEVICE),
        sampler=SamplerWithoutReplacement(),
        batch_size=task.minibatch,
    )
    trainer = PPOTrainer(
        collector=collector,
        total_frames=_FOR_EVER,
        frame_skip=1,
        optim_steps_per_batch=None,  # until the minibatches of an epoch are used up
        num_epochs=task.epochs,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), task.lr, eps=1e-5),
        clip_grad_norm=True,
        clip_norm=0.5,
        replay_buffer=buffer,
        gamma=0.99,
        lmbda=0.95,
        progress_bar=False,
        enable_logging=False,
        seed=task.seed,
    )
    _watch(trainer, task, stretches)
    trainer.train()


def _watch(trainer: PPOTrainer, task: Task, stretches: Stretches) -> None:
    """Have it say after every iteration how far it is, and end when nothing more is wanted."""
    tally, iterations = Tally(task.envs), 0
    stretches.reward = tally.read

    def count(batch: TensorDictBase) -> TensorDictBase:
        found = batch["next"]
        tally.add_rollout(found["reward"][..., 0].T, found["done"][..., 0].T)
        return batch

    def after() -> None:
        nonlocal iterations
        iterations += 1
        if iterations % task.iterations == 0:
            wait()
            if not stretches.after_round():
                trainer.total_frames = 0

    if task.learn_steps:
        trainer.register_op("batch_process", count)
    trainer.register_op("post_steps", after)


if __name__ == "__main__":
    main(train, "torchrl", "tensordict", "torch")
