"""What a run is made of, and what of it a checkpoint holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.algos.returns import ReturnScaler
from stoker.collect.in_step import InStepCollector
from stoker.collect.on_device import DeviceCollector
from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory
from stoker.errors import CheckpointError
from stoker.learn.learner import Learner, LearnReport
from stoker.learn.whole import Whole
from stoker.monitor.phases import PhaseClock
from stoker.nn.actor_critic import ActorCritic
from stoker.pools.base import BasePool
from stoker.storage.rollout import RolloutStorage
from stoker.train import devices
from stoker.train.overlap import Decision, OverlapTrial


@dataclass
class Parts:
    """Everything a run is made of."""

    config: Config
    device: torch.device
    decisions: list[Decision]
    eval_factory: EnvFactory | None
    pool: BasePool
    policy: ActorCritic
    scaler: ReturnScaler | None
    collector: InStepCollector | DeviceCollector
    learner: Learner
    clock: PhaseClock
    collect_clock: PhaseClock
    trial: OverlapTrial | None
    pinned: Any
    """The memory of the pool that a GPU copies from, if it could be locked."""
    whole: Whole
    """How whole rollouts and whole lessons run, where environments are tensors."""

    def __post_init__(self) -> None:
        self._lesson: Callable[[RolloutStorage], LearnReport] = self._learn
        if isinstance(self.collector, DeviceCollector):
            storage = self.collector.storage
            once = self.whole(lambda: self._learn(storage), self.learner.generator)
            self._lesson = lambda _: once()

    def learn_from(self, storage: RolloutStorage) -> LearnReport:
        """Learn from a rollout; then take what was seen in it into the statistics."""
        return self._lesson(storage)

    def _learn(self, storage: RolloutStorage) -> LearnReport:
        version = self.collector.version
        rollout = storage.judged_by(self.policy, version)
        report = self.learner.learn(rollout, version)
        self.policy.update_moments(rollout.obs, rollout.valid)
        return report

    def tensors(self) -> dict[str, Tensor]:
        """All state but the counters, by name: what a checkpoint holds."""
        groups: dict[str, Mapping[str, Tensor]] = {
            "policy": self.policy.state_dict(),
            "learner": self.learner.state(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
        }
        named = {f"{room}/{k}": v for room, part in groups.items() for k, v in part.items()}
        return named | self.collected_state()

    def collected_state(self) -> dict[str, Tensor]:
        """The part of the state that collecting changes."""
        collector = self.collector.state()
        return {f"collector/{name}": torch.as_tensor(value) for name, value in collector.items()}

    def restore(self, tensors: Mapping[str, Tensor], with_envs: bool = True) -> None:
        """Go on from where `tensors()` was taken; without the environments, with fresh ones."""
        try:
            self.policy.load_state_dict(room_of(tensors, "policy"))
            self.learner.restore(room_of(tensors, "learner"))
            if self.scaler:
                scaler = room_of(tensors, "scaler")
                carried = scaler["carried"] if with_envs else self.scaler.carried
                self.scaler.load_state_dict(scaler | {"carried": carried})
            if with_envs:
                collected = room_of(tensors, "collector")
                self._bring_back({k: v.numpy() for k, v in collected.items()})
            self.collector.publish()
            self.whole.forget()
        except (IndexError, KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint does not fit this configuration: {error}. Resume with the "
                "settings it was saved with, or start a new run."
            ) from error

    def recover(self) -> None:
        """After an error amid a rollout: bring environments back to where they last stood."""
        state = self.collector.state()
        state["busy"] = np.ones_like(state["busy"])  # what they see may be of the step that failed
        self._bring_back(state)

    def _bring_back(self, state: dict[str, np.ndarray]) -> None:
        restarted = self.collector.restore(state)
        if self.scaler:
            self.scaler.carried[torch.from_numpy(restarted)] = 0.0

    def close(self) -> None:
        """End collecting, then the environments: also where a Ctrl-C interrupts one of these."""
        with contextlib.ExitStack() as closing:  # which ends with what is put there first
            closing.callback(self.pool.close)
            closing.callback(self._unpin)
            closing.callback(self.collector.close)

    def _unpin(self) -> None:
        if self.pinned is not None:
            devices.unpin(self.pinned)
            self.pinned = None


def room_of(tensors: Mapping[str, Tensor], room: str) -> dict[str, Tensor]:
    """The tensors of one room of a checkpoint, by their names there."""
    prefix = room + "/"
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
