"""What a run is made of, and what of it a checkpoint holds."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stoker.algos.returns import ReturnScaler
from stoker.collect.in_step import InStepCollector
from stoker.collect.on_device import DeviceCollector
from stoker.config.schema import Config
from stoker.envs.registry import EnvFactory
from stoker.errors import CheckpointError, ConfigError
from stoker.learn.fused import FusedLearner
from stoker.learn.learner import Learner
from stoker.learn.q_learner import QLearner
from stoker.learn.whole import Whole
from stoker.monitor.phases import PhaseClock
from stoker.nn.actor_critic import ActorCritic
from stoker.pools.base import BasePool
from stoker.storage.replay import Replay
from stoker.storage.rollout import RolloutStorage
from stoker.train import devices, population, snapshot
from stoker.train.fused import SHUFFLED_APART, Fused
from stoker.train.overlap import Decision
from stoker.train.policies import TrainedPolicy
from stoker.train.population import Standing
from stoker.train.watch import Watch
from stoker.types import LearnReport

_SEEDS_APART = 1_000_003

Lesson = Callable[[RolloutStorage], LearnReport]
"""Learns from a rollout; then takes what was seen in it into the statistics."""


class Trial(Protocol):
    """Something that is tried, or made ready, while a run goes on."""

    def consider(self) -> Decision | None:
        """Called after every iteration; a decision when there is one."""

    def begin_anew(self) -> None:
        """The clocks begin anew."""

    def close(self) -> None:
        """The run is over."""


@dataclass
class Parts:
    """Everything a run is made of."""

    config: Config
    device: torch.device
    decisions: list[Decision]
    eval_factory: EnvFactory | None
    pool: BasePool
    policies: Sequence[TrainedPolicy]
    """One; or those of a population."""
    scaler: ReturnScaler | None
    collector: InStepCollector | DeviceCollector
    learner: Learner | FusedLearner | QLearner
    lesson: Lesson
    clock: PhaseClock
    collect_clock: PhaseClock
    trial: Trial | None
    pinned: Any
    """The memory of the pool that a GPU copies from, if it could be locked."""
    whole: Whole
    """How whole rollouts and whole lessons run, where environments are tensors."""
    fused: Fused | None = None
    """Acts and learns in kernels, where these have taken over."""
    watch: Watch | None = None
    """Samples the machine, unless that is not wanted."""

    def __post_init__(self) -> None:
        self._learned = [dict(policy.named_parameters()) for policy in self.policies]

    def check_weights(self) -> None:
        """Refuse to train weights that somebody has frozen, or replaced by others."""
        for policy, learned in zip(self.policies, self._learned, strict=True):
            now = dict(policy.named_parameters())
            if frozen := [name for name, weight in now.items() if not weight.requires_grad]:
                raise ConfigError(
                    f"{', '.join(frozen)} shall not change (requires_grad is False), and Stoker "
                    "trains all of a network or nothing. Set it to True."
                )
            other = [name for name in now | learned if now.get(name) is not learned.get(name)]
            if other:
                raise ConfigError(
                    f"{', '.join(other)} are not the parameters that are trained. Change weights "
                    "where they are: parameter.data.copy_(...), or load_state_dict without assign."
                )

    @property
    def policy(self) -> TrainedPolicy:
        """The one there is; of a population, that with the highest reward."""
        standings = self.standings()
        return self.policies[standings[0].agent if standings else 0]

    @property
    def actor_critics(self) -> list[ActorCritic]:
        """The policies, where PPO trains them."""
        return [policy for policy in self.policies if isinstance(policy, ActorCritic)]

    @property
    def replay(self) -> Replay | None:
        """Where DQN learns, what it learns from."""
        return self.learner.replay if isinstance(self.learner, QLearner) else None

    @property
    def learning(self) -> bool:
        """Whether lessons are what they will be: those of DQN make no update at first."""
        return not isinstance(self.learner, QLearner) or self.learner.begun

    def standings(self) -> list[Standing]:
        """The agents of a population, best first; of one alone, none."""
        if len(self.policies) == 1:
            return []
        assert isinstance(self.collector, DeviceCollector)
        return population.ranked(self.config, self.collector.episodes.means())

    def restart_clocks(self) -> None:
        """Time from now on."""
        self.clock.restart()
        self.collect_clock.restart()
        for timed in (self.trial, self.watch):
            if timed is not None:
                timed.begin_anew()

    def clocks(self) -> dict[str, PhaseClock]:
        """Of each thread that trains."""
        alone = self.collect_clock is self.clock
        return {"learner": self.clock, **({} if alone else {"collector": self.collect_clock})}

    def gpu_metrics(self) -> dict[str, float]:
        """What the GPU did since the last call, as far as that is known."""
        return {} if self.watch is None else self.watch.metrics()

    def tensors(self) -> dict[str, Tensor]:
        """All state but the counters and the rows, by name: what a checkpoint holds."""
        groups: dict[str, Mapping[str, Tensor]] = {
            "policy": self.policy.state_dict(),
            "learner": self.learner.state(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "replay": snapshot.state_of(self.replay) if self.replay else {},
        }
        if self.fused is not None and len(self.policies) > 1:
            groups["crowd"] = self.fused.crowd.state()
        named = {f"{room}/{k}": v for room, part in groups.items() for k, v in part.items()}
        return named | self.collected_state()

    def rows(self) -> Iterable[dict[str, Tensor]]:
        """What is too large to be held twice, in parts: what the replay has seen."""
        return () if self.replay is None else snapshot.Snapshot(self.replay)

    def collected_state(self) -> dict[str, Tensor]:
        """The part of the state that collecting changes."""
        collector = self.collector.state()
        return {f"collector/{name}": torch.as_tensor(value) for name, value in collector.items()}

    def restore(
        self,
        tensors: Mapping[str, Tensor],
        rows: Iterable[Mapping[str, Tensor]] = (),
        with_envs: bool = True,
    ) -> None:
        """Go on from where `tensors()` and `rows()` were taken; without the environments, with
        fresh ones."""
        try:
            if self.fused is not None and len(self.policies) > 1:
                self.fused.crowd.restore(room_of(tensors, "crowd"))
            else:
                self.policies[0].load_state_dict(room_of(tensors, "policy"))
            self.learner.restore(room_of(tensors, "learner"))
            self._follow_seeds()
            if self.scaler:
                scaler = _as_now(room_of(tensors, "scaler"), self.scaler.state_dict())
                carried = scaler["carried"] if with_envs else self.scaler.carried
                self.scaler.load_state_dict(scaler | {"carried": carried})
            if self.replay:
                self._fill_replay(self.replay, room_of(tensors, "replay"), rows, with_envs)
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

    def _fill_replay(
        self,
        replay: Replay,
        state: Mapping[str, Tensor],
        rows: Iterable[Mapping[str, Tensor]],
        with_envs: bool,
    ) -> None:
        if with_envs or snapshot.fits(replay, state):
            snapshot.restore(replay, state, rows)
            if not with_envs:
                replay.break_off(torch.arange(replay.n_envs, device=self.device))
            return
        length, n_envs = state["shape"].tolist()  # sync: loading a checkpoint
        warnings.warn(
            f"The replay begins empty: what was saved has {length} steps each of {n_envs} "
            f"environments, and there is room for {replay.length} each of {replay.n_envs}.",
            stacklevel=2,
        )

    def reseed(self) -> None:
        """Act and learn with other random numbers from now on."""
        for generator in (self.collector.policy.generator, self.learner.generator):
            generator.manual_seed(generator.initial_seed() + _SEEDS_APART)
        self._follow_seeds()

    def _follow_seeds(self) -> None:
        """Kernels draw from counters: by how far the seeds were moved, the generator knows."""
        if self.fused is not None:
            first = self.config.run.seed + SHUFFLED_APART
            self.fused.reseed(self.learner.generator.initial_seed() - first)

    def recover(self) -> None:
        """After an error amid a rollout: bring environments back to where they last stood."""
        state = self.collector.state()
        state["busy"] = np.ones_like(state["busy"])  # what they see may be of the step that failed
        self._bring_back(state)

    def _bring_back(self, state: dict[str, np.ndarray]) -> None:
        restarted = self.collector.restore(state)
        if self.scaler:
            self.scaler.carried[torch.from_numpy(restarted)] = 0.0
        if self.replay and restarted.size:
            self.replay.break_off(torch.from_numpy(restarted).to(self.device))  # sync: a restart

    def close(self) -> None:
        """End collecting, then the environments: also where a Ctrl-C interrupts one of these."""
        with contextlib.ExitStack() as closing:  # which ends with what is put there first
            closing.callback(self.pool.close)
            closing.callback(self._unpin)
            closing.callback(self.collector.close)
            if self.trial is not None:
                closing.callback(self.trial.close)
            if self.watch is not None:
                closing.callback(self.watch.close)

    def _unpin(self) -> None:
        if self.pinned is not None:
            devices.unpin(self.pinned)
            self.pinned = None


def _as_now(saved: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What was saved when there was no dimension for agents, with one."""
    return {
        name: value.view_as(own[name]) if value.numel() == own[name].numel() else value
        for name, value in saved.items()
    }


def room_of(tensors: Mapping[str, Tensor], room: str) -> dict[str, Tensor]:
    """The tensors of one room of a checkpoint, by their names there."""
    prefix = room + "/"
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def policy_of(tensors: Mapping[str, Tensor], agent: int | None = None) -> dict[str, Tensor]:
    """The state of an agent's policy in a checkpoint; without a number, that of the best."""
    crowd = room_of(tensors, "crowd")
    if agent is None or (agent == 0 and not crowd):
        return room_of(tensors, "policy")
    agents = len(next(iter(crowd.values()))) if crowd else 1
    if not 0 <= agent < agents:
        many = f"{agents} agents, 0 to {agents - 1}" if crowd else "one agent, which is 0"
        raise ConfigError(f"agent is {agent}, and the checkpoint holds {many}.")
    return {name: rows[agent] for name, rows in crowd.items()}
