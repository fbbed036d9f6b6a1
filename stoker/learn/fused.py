"""Learning where environments are tensors and networks are small: a few kernels an update.

K agents learn side by side, each from its own rows, each as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from stoker.config.schema import PPOSettings
from stoker.kernels import adam, mlp, scan, shuffle
from stoker.kernels.adam import AdamTerms, Optimised
from stoker.kernels.mlp import Net, PpoTerms, Rows
from stoker.learn.learner import LearnReport
from stoker.storage.on_device import DeviceStorage

Scale = Callable[[Tensor, Tensor], Tensor]
"""Rewards and where episodes ended, [T, K * n], to the rewards that are learned from."""

_NAMES = {"exp_avg": 1, "exp_avg_sq": 2}  # torch's, and which of `Optimised`


class FusedLearner:
    """Owns the optimiser and the shuffling of the agents whose parameters are rows of `flat`."""

    def __init__(
        self,
        net: Net,
        flat: Tensor,
        moments: mlp.Moments | None,
        scale: Scale | None,
        storage: DeviceStorage,
        settings: PPOSettings,
        minibatch: int,
        seeds: Tensor,
        precision: str,
    ) -> None:
        self.net, self.moments, self._scale, self.storage = net, moments, scale, storage
        self.settings, self.minibatch, self.precision = settings, minibatch, precision
        self.optimised = Optimised.of(flat)
        self.lessons = torch.zeros((), dtype=torch.int64, device=flat.device)
        """How many rollouts were learned from: shuffling follows from that and the seeds."""
        self._seeds = seeds
        agents, self._n = len(flat), storage.n_envs // len(flat)

        def each(number: float) -> Tensor:
            return torch.full((agents,), number, device=flat.device)

        entropy, value = each(settings.ent_coef), each(settings.vf_coef)
        self._rates, self._clips = each(settings.learning_rate), each(settings.clip_range)
        kl = float("inf") if settings.target_kl is None else settings.target_kl
        self._update = AdamTerms(
            self._rates.clone(), entropy, value, settings.max_grad_norm, settings.adam_eps, kl
        )
        self._loss = PpoTerms(
            self._clips.clone(),
            entropy,
            value,
            settings.clip_range_vf,
            settings.normalize_advantage,
        )
        parts = mlp.parts(agents, minibatch, flat.device)
        self._parts = flat.new_zeros(agents, parts, net.size)
        self._measured = flat.new_zeros(agents, parts, len(mlp.MEASURED))
        self._values = flat.new_zeros(storage.n_steps + 1, storage.n_envs)

    def anneal(self, remaining: float) -> None:
        """Set the schedules for a run of which the share `remaining` lies ahead."""
        for value, start, schedule in (
            (self._update.rate, self._rates, self.settings.lr_schedule),
            (self._loss.clip, self._clips, self.settings.clip_schedule),
        ):
            if schedule == "linear":
                torch.mul(start, remaining, out=value)

    def learn(self) -> LearnReport:
        """Every epoch, every minibatch, of the rollout that the storage holds."""
        rows = self._judged()
        settings, optimised = self.settings, self.optimised
        minibatches = self.storage.n_steps * self._n // self.minibatch
        index, spread = shuffle.shuffled(
            (self._seeds << 32) + self.lessons,
            settings.n_epochs,
            self._n,
            self.storage.n_steps,
            rows.advantage.view_as(self._values[:-1]),
            minibatches,
        )
        self.lessons += 1
        optimised.begin()
        for epoch in range(settings.n_epochs):
            for number in range(minibatches):
                mlp.gradient(
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
        means = optimised.tally / optimised.made[:, None]
        metrics = dict(zip(adam.COUNTED, means.nanmean(0).unbind(), strict=True))
        metrics["train/explained_variance"] = self._explained_variance(rows).mean()
        metrics["train/n_updates"] = optimised.made.mean()
        metrics |= {"lag/mean": self._values.new_zeros(()), "lag/max": self._values.new_zeros(())}
        metrics["train/learning_rate"] = self._update.rate.mean()
        metrics["train/clip_range"] = self._loss.clip.mean()
        return LearnReport(metrics, optimised.skipped.sum())

    def _judged(self) -> Rows:
        """The rollout's rows, with what each is worth."""
        storage, settings = self.storage, self.settings
        kept, seen = storage.rollout, storage.plain()
        flat, values = self.optimised.flat, self._values
        given = (self.net, flat, self.moments)
        mlp.value(*given, seen.flatten(0, 1), None, values.view(-1), self._n, self.precision)
        cut, final_obs = kept.truncated.flatten(), storage.plain_finals().flatten(0, 1)
        mlp.value(*given, final_obs, cut, kept.final_value.view(-1), self._n, self.precision)
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

    def _explained_variance(self, rows: Rows) -> Tensor:
        """1 - Var(target - value) / Var(target), [K]."""
        left = rows.advantage.view(self.storage.n_steps, -1, self._n)
        known = rows.value.view_as(left)
        return 1 - left.var((0, 2), correction=0) / (left + known).var((0, 2), correction=0)

    def reseed(self, apart: int) -> None:
        """Shuffle otherwise from now on."""
        self._seeds.add_(apart)

    def state(self, named: Callable[[Tensor], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The optimiser's state, by parameter as `named` cuts it up, and the shuffling's."""
        state = {"lessons": self.lessons.clone(), "step": self.optimised.counts[:, 0].clone()}
        for key, field in _NAMES.items():
            for name, part in named(self.optimised[field]).items():
                state[f"{key}.{name}"] = part.clone()
        return state

    def restore(
        self, state: Mapping[str, Tensor], named: Callable[[Tensor], Mapping[str, Tensor]]
    ) -> None:
        self.lessons.copy_(state["lessons"])
        self.optimised.counts.copy_(state["step"][:, None])
        for key, field in _NAMES.items():
            for name, part in named(self.optimised[field]).items():
                part.copy_(state[f"{key}.{name}"])
