"""The learner: epochs of shuffled minibatches over a rollout, without waiting for the device.

Nothing here reads a tensor on the host: skipping a bad update and stopping at a KL limit are done
on the device, through Adam's `found_inf`, and metrics stay there until somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from stoker.config.schema import PPOSettings
from stoker.kernels.descent import Descent
from stoker.learn.executor import Steps
from stoker.learn.microbatch import gradient
from stoker.types import LearnReport, LossFunction, Minibatch, Normalise, Prepare, Rollout


class Learner:
    """Owns the optimiser and the shuffling; the loss and the parameters arrive from outside."""

    _descends: type[Descent] = Descent

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        prepare: Prepare,
        loss: LossFunction,
        settings: PPOSettings,
        minibatch: int,
        device: torch.device,
        seed: int,
        executor: str = "eager",
        asks: bool = True,
        normalise: Normalise | None = None,
        micro_batch: int = 0,
    ) -> None:
        self.parameters, self.prepare, self.loss = dict(parameters), prepare, loss
        self.settings, self.minibatch, self.normalise = settings, minibatch, normalise
        self.micro_batch = min(micro_batch or minibatch, minibatch)
        """Rows that go through the network at once."""
        self.attempt: Callable[[Callable[[], None]], None] = lambda update: update()
        """Makes an update; something that tries again in smaller parts may take its place."""
        self.generator = torch.Generator(device).manual_seed(seed)
        self.learning_rate = torch.tensor(settings.learning_rate, device=device)
        self.clip_range = torch.tensor(settings.clip_range, device=device)
        self._loss_of = lambda batch: loss(self.parameters, batch, self.clip_range)
        self._descent = self._descends(self.parameters, settings.adam_eps, settings.max_grad_norm)
        self._steps = Steps(self._step, captures=executor == "graph")
        self._asks = asks and settings.target_kl is not None
        self._stopped = torch.zeros((), dtype=torch.bool, device=device)

    def anneal(self, remaining: float) -> None:
        """Set the schedules for a run of which the share `remaining` lies ahead."""
        settings = self.settings
        for value, start, schedule in (
            (self.learning_rate, settings.learning_rate, settings.lr_schedule),
            (self.clip_range, settings.clip_range, settings.clip_schedule),
        ):
            value.fill_(start * remaining if schedule == "linear" else start)

    def learn(self, rollout: Rollout, version: int) -> LearnReport:
        """Every epoch, every minibatch: one pass over the rollout's rows an epoch, reshuffled.

        `version` is the number of the weights that learning begins with.
        """
        rows, prepared = self.prepare(rollout)
        lag = (version - rollout.policy_version).to(rows.value.dtype)
        self._descent.begin()
        self._stopped.zero_()
        epoch = self.epoch_of(rows)
        for _ in range(self.settings.n_epochs):
            if epoch(self._shuffled(len(rows.value))):
                break
        metrics = self._descent.means() | prepared | {"train/n_updates": self._descent.made.clone()}
        metrics |= {"lag/mean": lag.mean(), "lag/max": lag.max()}
        metrics["train/learning_rate"] = self.learning_rate.clone()
        metrics["train/clip_range"] = self.clip_range.clone()
        return LearnReport(metrics, self._descent.skipped.clone())

    def epoch_of(self, rows: Minibatch) -> Callable[[Tensor], bool]:
        """What makes updates, each from the rows that a line of [updates, B] names; and says
        whether the KL limit was reached."""
        step = self._steps.over(rows)

        def epoch(order: Tensor) -> bool:
            for index in order:
                self.attempt(partial(step, index))
            # With a KL limit, ask once an epoch, to save the epochs after it; unless all of this
            # is to be captured: then what comes after it is done for nothing.
            return self._asks and self._has_stopped()

        return epoch

    def _has_stopped(self) -> bool:
        if self._stopped.is_cuda:
            reached = torch.cuda.Event(blocking=True)  # sleeps: workers need the cores
            reached.record()
            reached.synchronize()  # sync: the epoch is over
        return bool(self._stopped)  # sync: one flag

    def _shuffled(self, rows: int) -> Tensor:
        order = torch.randperm(rows, generator=self.generator, device=self.generator.device)
        return order.view(-1, self.minibatch)

    def _step(self, rows: Minibatch, index: Tensor) -> None:
        """One gradient step on the rows `index`, unless stopped, not finite or without a row."""
        batch = rows.take(index)
        if self.normalise is not None:
            batch = batch._replace(advantage=self.normalise(batch.advantage, batch.valid))
        self._descent.forget()
        loss = gradient(self._loss_of, batch, self.micro_batch)
        limit = self.settings.target_kl
        stopped = self._stopped if limit is None else self._stopped | (loss.approx_kl > 1.5 * limit)
        allowed = ~stopped & batch.valid.any()  # momentum would move it all the same
        self._descent.step(self.learning_rate, loss.total, loss.metrics, allowed)
        self._stopped |= stopped

    def state(self) -> dict[str, Tensor]:
        """The optimiser's and the shuffling's state, by parameter name."""
        return {"shuffle_rng": self.generator.get_state(), **self._descent.state}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["shuffle_rng"].cpu())  # sync: loading a checkpoint
        self._steps.forget()
        self._descent.restore(state)
