"""Learning where environments are tensors and networks are small: a few kernels an update.

K agents learn side by side, each from its own rows, each as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stoker.config.schema import PPOSettings
from stoker.kernels import adam, mlp, scan, shuffle
from stoker.kernels.adam import AdamTerms, Optimised
from stoker.kernels.linear import Precision
from stoker.kernels.mlp import Net, PpoTerms, Rows
from stoker.storage.on_device import DeviceStorage
from stoker.types import LearnReport, Way, as_it_is

Scale = Callable[[Tensor, Tensor], Tensor]
"""Rewards and where episodes ended, [T, K * n], to the rewards that are learned from."""

Named = Callable[[Tensor], Mapping[str, Tensor]]
"""Something laid out as the agents' parameters [K, P], cut up by parameter: [K, ...] each."""

_SUMS = {"exp_avg": "mean", "exp_avg_sq": "square"}  # torch's names, and those in `Optimised`


_MEASURED = (*adam.COUNTED, "train/explained_variance", "train/n_updates")


class Passes(Protocol):
    """Kernels that take a network forward and backward, as `kernels.mlp` does; or `wide`."""

    parts: Callable[..., int]
    act: Callable[..., None]
    value: Callable[..., None]
    gradient: Callable[..., None]


class Scalars(NamedTuple):
    """Settings that may differ from agent to agent, [K] each."""

    learning_rate: Tensor
    clip_range: Tensor
    ent_coef: Tensor
    vf_coef: Tensor


class FusedLearner:
    """Owns the optimiser and the shuffling of the agents whose parameters are rows of `flat`.

    An agent's shuffling follows from its seed and from `number`, which is another one for every
    rollout. `generator` is not used: whoever shuffled with it before may do so again.
    """

    def __init__(
        self,
        passes: Passes,
        net: Net,
        flat: Tensor,
        named: Named,
        moments: mlp.Moments | None,
        scale: Scale | None,
        storage: DeviceStorage,
        settings: PPOSettings,
        scalars: Scalars,
        minibatch: int,
        seeds: Tensor,
        number: Tensor,
        generator: torch.Generator,
        precision: Precision,
        way: Way = as_it_is,
    ) -> None:
        self._passes, self._way = passes, way
        self.net, self.moments, self._scale, self.storage = net, moments, scale, storage
        self.settings, self.minibatch, self.precision = settings, minibatch, precision
        self.optimised, self._named = Optimised.of(flat), named
        self._first_seeds, self._seeds = seeds, seeds.clone()
        self._number, self.generator = number, generator
        agents, self._n = len(flat), storage.n_envs // len(flat)
        self._scalars = scalars
        kl = float("inf") if settings.target_kl is None else settings.target_kl
        self._update = AdamTerms(
            scalars.learning_rate.clone(),
            scalars.ent_coef,
            scalars.vf_coef,
            settings.max_grad_norm,
            settings.adam_eps,
            kl,
        )
        self._loss = PpoTerms(
            scalars.clip_range.clone(),
            scalars.ent_coef,
            scalars.vf_coef,
            settings.clip_range_vf,
            settings.normalize_advantage,
        )
        parts = passes.parts(agents, minibatch, flat.device)
        self._parts = flat.new_zeros(agents, parts, net.size)
        self._measured = flat.new_zeros(agents, parts, len(mlp.MEASURED))
        self._nothing = flat.new_zeros(())
        self._values = flat.new_zeros(storage.n_steps + 1, storage.n_envs)

    def anneal(self, remaining: float) -> None:
        """Set the schedules for a run of which the share `remaining` lies ahead."""
        for value, start, schedule in (
            (self._update.rate, self._scalars.learning_rate, self.settings.lr_schedule),
            (self._loss.clip, self._scalars.clip_range, self.settings.clip_schedule),
        ):
            if schedule == "linear":
                torch.mul(start, remaining, out=value)

    def learn(self) -> LearnReport:
        """Every epoch, every minibatch, of the rollout that the storage holds."""
        rows = self._judged()
        settings, optimised = self.settings, self.optimised
        minibatches = self.storage.n_steps * self._n // self.minibatch
        index, spread = shuffle.shuffled(
            (self._seeds << 32) + self._number,
            settings.n_epochs,
            self._n,
            self.storage.n_steps,
            rows.advantage.view_as(self._values[:-1]),
            minibatches,
        )
        optimised.begin()
        for epoch in range(settings.n_epochs):
            for number in range(minibatches):
                self._passes.gradient(
                    self.net,
                    optimised.flat,
                    self.moments,
                    rows,
                    index[epoch, number],
                    spread[epoch, number],
                    self._loss,
                    self._parts,
                    self._measured,
                    self.precision,
                )
                adam.step(optimised, self._parts, self._measured, self._update)
        measured = self._way(_measured)(optimised, rows.advantage, rows.value, self.storage.n_steps)
        metrics = dict(zip(_MEASURED, measured.unbind(), strict=True))
        metrics |= {"lag/mean": self._nothing, "lag/max": self._nothing}
        metrics["train/learning_rate"] = self._update.rate.mean()
        metrics["train/clip_range"] = self._loss.clip.mean()
        if len(optimised.skipped) > 1:
            metrics["population/skipping"] = (optimised.skipped > 0).sum().float()
        # Of several, one that has gone astray is left alone.
        return LearnReport(metrics, optimised.skipped.amin())

    def _judged(self) -> Rows:
        """The rollout's rows, with what each is worth."""
        storage, settings = self.storage, self.settings
        kept, seen = storage.rollout, storage.plain()
        flat, values = self.optimised.flat, self._values
        given = (self.net, flat, self.moments)
        worth = self._passes.value
        worth(*given, seen.flatten(0, 1), None, values.view(-1), self._n, self.precision)
        cut, final_obs = kept.truncated.flatten(), storage.plain_finals().flatten(0, 1)
        worth(*given, final_obs, cut, kept.final_value.view(-1), self._n, self.precision)
        reward = kept.reward
        if self._scale is not None:
            reward = self._scale(reward, kept.terminated | kept.truncated)
        advantage = scan.advantages(
            reward,
            values[:-1],
            kept.terminated,
            kept.truncated,
            kept.final_value,
            values[-1],
            settings.gamma,
            settings.gae_lambda,
        )
        return Rows(
            seen[:-1].flatten(0, 1),
            kept.action.flatten(0, 1),
            kept.behaviour_log_prob.flatten(),
            advantage.flatten(),
            values[:-1].flatten(),
        )

    def reseed(self, apart: int) -> None:
        """Shuffle as if the seeds were so much larger than they are."""
        torch.add(self._first_seeds, apart, out=self._seeds)

    def state(self) -> dict[str, Tensor]:
        """What `Learner.state` gives, under the same names; of several agents, [K, ...] each."""
        state = {"shuffle_rng": self.generator.get_state()}
        for name, parts in self._held().items():
            for key, part in parts.items():
                state[f"{key}.{name}"] = part.clone()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state()`, or from that of a `Learner` of one agent."""
        self.generator.set_state(state["shuffle_rng"].cpu())  # sync: loading a checkpoint
        for name, parts in self._held().items():
            for key, part in parts.items():
                part.copy_(state[f"{key}.{name}"])
        counts = next(iter(self._held().values()))["step"].clone()
        self.optimised.counts.copy_(counts.view(-1, 1))

    def _held(self) -> dict[str, dict[str, Tensor]]:
        """Views of the optimiser's state, by parameter."""
        optimised, alone = self.optimised, len(self._seeds) == 1
        sums = {key: self._named(getattr(optimised, field)) for key, field in _SUMS.items()}
        held: dict[str, dict[str, Tensor]] = {}
        for name in sums["exp_avg"]:
            parts = {key: rows[name] for key, rows in sums.items()}
            parts["step"] = optimised.counts[:, 0]
            held[name] = {key: part[0] if alone else part for key, part in parts.items()}
        return held


def _measured(optimised: Optimised, advantage: Tensor, value: Tensor, steps: int) -> Tensor:
    """What `_MEASURED` names, over the updates that were made, as means over the agents."""
    agents = len(optimised.made)
    means = (optimised.tally / optimised.made[:, None]).nanmean(0)
    left = advantage.view(steps, agents, -1)  # of the targets, once the values are taken off
    target = left + value.view_as(left)
    explained = 1 - left.var((0, 2), correction=0) / target.var((0, 2), correction=0)
    explained = torch.where(explained.isfinite(), explained, torch.nan)  # of constant targets
    return torch.cat((means, explained.nanmean()[None], optimised.made.mean()[None]))
