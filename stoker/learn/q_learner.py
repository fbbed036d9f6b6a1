"""The learner of DQN: so many updates from the replay for each step that was made.

Random numbers are drawn for a whole lesson at once, and an update is a function of them, so it can
be captured. Nothing is fetched from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stoker.config.schema import DQNSettings
from stoker.kernels.descent import Descent
from stoker.learn.executor import Steps
from stoker.storage.replay import Replay
from stoker.types import LearnReport, QLoss, Transitions

_ROUNDED = 1e-6  # of an update: products of fractions fall short of whole numbers by less


QGradient = Callable[[Transitions, Tensor | None], QLoss]
"""Rows and the noise of noisy networks, [3, ...], to their loss, whose gradient is added."""


Updating = Generator[None, None, tuple[Tensor, Tensor]]
"""Yields when an update is made; in the end, each row's error [U * B], and which were made, [U] or
[]."""


class QUpdates(Protocol):
    """Updates, one after the other, from rows that were drawn for all of them."""

    at_once: int
    """How many may be asked for; with more than one, the target stays as it is meanwhile."""

    def __call__(self, batch: Transitions, noise: Tensor | None, rate: Tensor) -> Updating: ...

    def within(self) -> AbstractContextManager[None]:
        """What updates are made in."""


class OneByOne:
    """Updates along the gradient of a loss."""

    at_once = 1

    def __init__(self, gradient: QGradient, descent: Descent) -> None:
        self._gradient, self._descent = gradient, descent

    def __call__(self, batch: Transitions, noise: Tensor | None, rate: Tensor) -> Updating:
        self._descent.forget()
        loss = self._gradient(batch, noise)
        allowed = batch.weight.amax() > 0
        made = self._descent.step(rate, loss.total, loss.metrics, allowed)
        yield
        return loss.error.detach(), made

    def within(self) -> AbstractContextManager[None]:
        return nullcontext()


class Lots(NamedTuple):
    """What chance has U updates learn from."""

    row: Tensor  # int64 [U * B]; with priorities, numbers from 0 to 1 by which rows are found
    weight: Tensor  # [U * B], how much rows count, where there are no priorities
    noise: Tensor | None  # [3, ...], of noisy networks


def _whole(update: Callable[[Lots], None], lots: Lots) -> Iterator[None]:
    update(lots)
    yield


class QLearner:
    """Has the replay's rows made into `updates`, as many as are due; owns the target's weights.

    All at once (`learn`), or some at a time: `take` steps, `go_on` with the updates that are due
    for them, and `report`.
    """

    micro_batch = 0

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        target: Sequence[Tensor],
        updates: QUpdates,
        descent: Descent,
        replay: Replay,
        settings: DQNSettings,
        minibatch: int,
        seed: int,
        epsilon: Tensor,
        noise_width: int = 0,
        executor: str = "eager",
    ) -> None:
        self.replay, self.settings, self.minibatch = replay, settings, minibatch
        self._make, self._epsilon, self._noise_width = updates, epsilon, noise_width
        device = replay.device
        self._online: list[Tensor] = list(parameters.values())
        self._target = list(target)
        self._target_names = [f"target.{name}" for name in parameters]
        self.generator = torch.Generator(device).manual_seed(seed)
        self.learning_rate = torch.tensor(settings.learning_rate, device=device)
        self._beta = torch.tensor(settings.per_beta, device=device)
        self._descent = descent
        self._at_once = 1 if settings.per else updates.at_once  # each changes priorities
        self._captured = Steps(self._step, captures=True) if executor == "graph" else None
        self._steps = self._updates = 0
        self._under_way: Iterator[None] | None = None

    @property
    def _since(self) -> int:
        """Steps since learning began."""
        return max(0, self._steps - self.settings.learning_starts)

    @property
    def begun(self) -> bool:
        """Whether any update was made."""
        return self._updates > 0

    def anneal(self, remaining: float) -> None:
        """Set the schedules for a run of which the share `remaining` lies ahead."""
        settings, gone = self.settings, 1.0 - remaining
        linear = settings.lr_schedule == "linear"
        self.learning_rate.fill_(settings.learning_rate * (remaining if linear else 1.0))
        self._beta.fill_(settings.per_beta + (1.0 - settings.per_beta) * gone)
        passed, over = gone, settings.epsilon_fraction
        if settings.epsilon_steps:
            passed, over = self._steps, settings.epsilon_steps
        first, last = settings.epsilon_start, settings.epsilon_end
        self._epsilon.fill_(first + (last - first) * min(1.0, passed / over if over else 1.0))

    def learn(self, steps: int) -> LearnReport:
        """The updates that are due now that `steps` more were made, which the replay has."""
        self.take(steps)
        self.go_on()
        return self.report()

    def take(self, steps: int) -> None:
        """So many steps more were made, which the replay has. What was due before is done."""
        self._steps += steps
        self._descent.begin()

    def go_on(self, parts: int = 1) -> None:
        """Make one of `parts` equal parts of the updates that are still due."""
        number = -(-self._due // parts)
        if not number:
            return
        under_way = self._under_way or self._updates_of(self._due)
        self._under_way = None  # should it fail, it is over
        with self._make.within():
            for _ in range(number):
                next(under_way)
            if self._due:
                self._under_way = under_way
            else:
                next(under_way, None)  # what is left to be done once they are made

    @property
    def _due(self) -> int:
        owed = int(self.settings.update_ratio * self._since + _ROUNDED)
        return max(0, owed - self._updates)

    def make(self, number: int) -> None:
        """So many updates, whether or not they are due."""
        with self._make.within():
            for _ in self._updates_of(number):
                pass

    def _updates_of(self, due: int) -> Iterator[None]:
        """Yields after each; that it was made is known by then."""
        made, every = 0, self.settings.target_every
        chances, noise = self._draw_lots(due)
        update = None if self._captured is None else self._captured.over(None)
        while made < due:
            number = min(due - made, self._at_once, every - self._updates % every)
            row, weight = (part[made : made + number].flatten() for part in chances)
            lots = Lots(row, weight, None if noise is None else noise[made])
            made += number
            for _ in self._steps_along(lots) if update is None else _whole(update, lots):
                self._updates += 1
                if self._updates % every:
                    yield
            if self._updates % every == 0:
                self._move_target()
                yield

    def report(self) -> LearnReport:
        """What came of the updates since steps were last taken."""
        return LearnReport(self._metrics(), self._descent.skipped.clone())

    def _draw_lots(self, due: int) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Of a lesson. Without priorities the rows follow at once: they change with no update."""
        generator, device = self.generator, self.replay.device
        row = torch.rand(due, self.minibatch, generator=generator, device=device)
        chances = (row, row)
        if not self.settings.per:
            chances = self.replay.priorities.sample(row, self._beta)
        if not self._noise_width:
            return chances, None
        wide = (due, 3, self._noise_width)
        return chances, torch.randn(wide, generator=generator, device=device)

    def _step(self, _: None, lots: Lots) -> None:
        for _ in self._steps_along(lots):
            pass

    def _steps_along(self, lots: Lots) -> Iterator[None]:
        """Gradient steps, but where something is not finite or there is nothing to sample."""
        priorities, row, weight = self.replay.priorities, lots.row, lots.weight
        if self.settings.per:
            row, weight = priorities.sample(lots.row, self._beta)
        batch = self.replay.draw(row, weight)
        error, made = yield from self._make(batch, lots.noise, self.learning_rate)
        if self.settings.per:
            priorities.update(row, error, made)

    @torch.no_grad()
    def _move_target(self) -> None:
        if self.settings.tau == 1.0:
            torch._foreach_copy_(self._target, self._online)
        else:
            torch._foreach_lerp_(self._target, self._online, self.settings.tau)

    def _metrics(self) -> dict[str, Tensor]:
        one = self._descent.made
        ratio = self._updates / self._since if self._since else 0.0
        known = {"train/update_ratio": ratio, "train/replay_steps": float(self._kept())}
        metrics = {name: torch.full_like(one, value) for name, value in known.items()}
        metrics |= self._descent.means() | {"train/n_updates": one.clone()}
        metrics["train/learning_rate"] = self.learning_rate.clone()
        if self.settings.exploration == "epsilon":
            metrics["rollout/exploration_rate"] = self._epsilon.clone()
        if self.settings.per:
            metrics["train/beta"] = self._beta.clone()
        return metrics

    def _kept(self) -> int:
        """Steps that the replay holds, about: rows that only hold what was seen last are few."""
        return min(self._steps, self.replay.length * self.replay.n_envs)

    def state(self) -> dict[str, Tensor]:
        """The optimiser's, the target's and the sampling's state."""
        counts = torch.tensor([self._steps, self._updates])
        target = dict(zip(self._target_names, self._target, strict=True))
        rng = {"sample_rng": self.generator.get_state()}
        return {**rng, "counts": counts, **target, **self._descent.state}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["sample_rng"].cpu())  # sync: loading a checkpoint
        self._steps, self._updates = state["counts"].tolist()  # sync: likewise
        self._under_way = None
        if self._captured is not None:
            self._captured.forget()
        for name, value in zip(self._target_names, self._target, strict=True):
            value.copy_(state[name])
        self._descent.restore(state)
