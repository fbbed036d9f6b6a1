"""An update of one agent whose parameters lie apart: clip, Adam, and what is counted of it.

What `kernels.adam.step` is for agents in a flat buffer. Nothing is fetched: an update that must not
be made is not made on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from stoker.kernels.adam import Adam

_ALL = "all"
_NORM = "train/grad_norm"
_DENORMAL = 5e-324


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Take numbers below 1e-38 for 0, in this thread.

    The mean gradient of a unit that is never active shrinks to them within a thousand updates, and
    a CPU takes a fifth longer for Adam then.
    """
    flushed = _DENORMAL * 1.0 == 0.0  # by whoever called
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


class Descent:
    """Owns the optimiser, and counts since it was last told to `begin`."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], eps: float, most_norm: float
    ) -> None:
        self._parameters, self._most_norm = list(parameters.values()), most_norm
        self._optimiser = Adam(parameters, eps)
        one = self._parameters[0].new_zeros(()).detach()
        self._names: list[str] = []
        self._sums = one.new_empty(0)
        self.made, self.skipped = one.clone(), one.clone()
        """Updates, and those that were not made because something was not finite."""

    def begin(self) -> None:
        """Count anew."""
        for counter in (self._sums, self.made, self.skipped):
            counter.zero_()

    def forget(self) -> None:
        """Gradients, so that the next ones are not added to them."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(
        self, rate: Tensor, total: Tensor, metrics: Mapping[str, Tensor], allowed: Tensor
    ) -> Tensor:
        """Update by the parameters' `grad`, that of the loss `total`; whether it was made.

        Not where it or the gradient is not finite, or `allowed` is False.
        """
        norm = self._clipped()
        finite = torch.isfinite(norm) & torch.isfinite(total.detach())
        made = finite & allowed
        skip, bad = (~made).to(norm.dtype), ~finite
        measured = {**metrics, _NORM: norm}
        self._name(measured)
        counted = torch.where(made, torch.stack(list(measured.values())), 0.0)
        # From here on things change, and nothing takes memory: what fails has failed before.
        self._optimiser.step(rate, skip)
        self._sums += counted
        self.made += made
        self.skipped += bad
        return made

    def _name(self, measures: Iterable[str]) -> None:
        """What is counted; the same every time."""
        if not self._names:
            self._names = list(measures)
            with torch.inference_mode(False):  # it is changed outside of that, too
                self._sums = self.made.new_zeros(len(self._names))

    def _clipped(self) -> Tensor:
        """The gradient's norm, before it was scaled down to the most there may be."""
        return nn.utils.clip_grad_norm_(self._parameters, self._most_norm, foreach=True)

    def means(self) -> dict[str, Tensor]:
        """Of what was measured, over the updates that were made."""
        return dict(zip(self._names, (self._sums / self.made).unbind(), strict=True))

    @property
    def state(self) -> dict[str, Tensor]:
        """The optimiser's, by parameter name."""
        return self._optimiser.state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.state.items():
            value.copy_(state[name])


class FlatDescent(Descent):
    """The same where parameters and gradients are parts of one buffer each: fewer, larger steps.

    The parameters' tensors become parts of it; and so do their gradients, which are added to.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], eps: float, most_norm: float
    ) -> None:
        self._shapes = {name: value.shape for name, value in parameters.items()}
        self._named = dict(parameters)
        flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters.values()]))
        flat.grad = self._gradient = torch.zeros_like(flat)
        self._homes = self._parts(flat.data)
        for name, part in self._homes.items():
            parameters[name].data = part
        for name, part in self._parts(self._gradient).items():
            parameters[name].grad = part
        super().__init__({_ALL: flat}, eps, most_norm)

    def _parts(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of something laid out as the parameters are, by their names."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        pairs = zip(self._shapes.items(), flat.split(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in pairs}

    def begin(self) -> None:
        """Count anew; parameters whose tensors somebody has replaced are taken in again."""
        super().begin()
        for name, home in self._homes.items():
            parameter = self._named[name]
            if parameter.data_ptr() != home.data_ptr():
                parameter.data = home.copy_(parameter.data)

    def forget(self) -> None:
        self._gradient.zero_()

    def _clipped(self) -> Tensor:
        norm = torch.linalg.vector_norm(self._gradient)
        self._gradient.mul_((norm + 1e-6).reciprocal_().mul_(self._most_norm).clamp_(max=1.0))
        return norm

    def move(self, rate: Tensor) -> float:
        """On a CPU, where asking costs nothing: update as `step` does, if the gradient is finite,
        and leave it to be counted later. The gradient's norm; not finite if it was not made."""
        norm = math.sqrt(torch.dot(self._gradient, self._gradient).item())  # sync: on the CPU
        if not math.isfinite(norm):
            return norm
        self._optimiser.step_quickly(rate, (norm + 1e-6) / self._most_norm)
        return norm

    def count(self, metrics: Mapping[str, Tensor], norms: Tensor, tried: Tensor) -> Tensor:
        """Count updates that were left to be: of each its `metrics` [U], what `move` said [U], and
        whether it was `tried` [U]. Which were made, [U]."""
        made = tried & torch.isfinite(norms)
        measured = {**metrics, _NORM: norms}
        self._name(measured)
        self._sums += torch.stack(list(measured.values())).where(made, 0.0).sum(1)
        self.made += made.sum()
        self.skipped += (tried & ~made).sum()
        return made

    @property
    def state(self) -> dict[str, Tensor]:
        """As `Descent` has it; the parts of a flat buffer."""
        held = self._optimiser.state
        steps = {f"step.{name}": held[f"step.{_ALL}"] for name in self._shapes}
        sums = {
            f"{key}.{name}": part
            for key in ("exp_avg", "exp_avg_sq")
            for name, part in self._parts(held[f"{key}.{_ALL}"]).items()
        }
        return steps | sums
