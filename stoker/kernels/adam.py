"""An update of K agents from their gradients: sum, clip, Adam, and what is counted of it.

Parameters are rows of a flat buffer [K, P]; gradients arrive in S parts [K, S, P] that are yet to
be summed, as does what was measured. Nothing is fetched: an update that must not be made is not
made on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

BETAS = (0.9, 0.999)
_ONE = np.ones(1, np.float32)
APPLIED = 1024
"""Parameters that one program updates."""
STOP_AT = 1.5
"""Times the KL limit, where an agent stops learning from a rollout."""
COUNTED = (
    "train/loss",
    "train/policy_gradient_loss",
    "train/value_loss",
    "train/entropy_loss",
    "train/approx_kl",
    "train/clip_fraction",
    "train/grad_norm",
)


class Optimised(NamedTuple):
    """What an update changes."""

    flat: Tensor  # [K, P]
    mean: Tensor  # [K, P], of gradients
    square: Tensor  # [K, P], the mean of their squares
    counts: Tensor  # [K, P / APPLIED], updates ever made: the same number for each program
    stopped: Tensor  # bool [K], for this rollout, by the KL limit
    tally: Tensor  # [K, len(COUNTED)], sums over the updates made from this rollout
    made: Tensor  # [K], how many these are
    skipped: Tensor  # [K], updates not made because something was not finite

    @staticmethod
    def of(flat: Tensor) -> Optimised:
        """Before the first update."""
        one = torch.zeros(len(flat), device=flat.device)
        tally = torch.zeros(len(flat), len(COUNTED), device=flat.device)
        moments = (torch.zeros_like(flat), torch.zeros_like(flat))
        counts = one[:, None].repeat(1, -(-flat.shape[1] // APPLIED))
        return Optimised(flat, *moments, counts, one.bool(), tally, one, one.clone())

    def begin(self) -> None:
        """Another rollout: count anew."""
        for counter in (self.stopped, self.tally, self.made, self.skipped):
            counter.zero_()


class AdamTerms(NamedTuple):
    """Settings of an update, each agent's own where they are tensors."""

    rate: Tensor  # [K], the learning rate
    entropy: Tensor  # [K], its weight in the loss
    value: Tensor  # [K], likewise
    most: float  # the gradient's largest norm
    eps: float
    kl: float  # the KL limit; infinite for none


def step(optimised: Optimised, parts: Tensor, measured: Tensor, terms: AdamTerms) -> None:
    """Sum `parts` [K, S, P] and `measured` [K, S, 5] (see `mlp.MEASURED`), and update in place.

    A step is left out where the loss or the gradient is not finite, or the KL limit was passed: by
    this minibatch or by one before it.
    """
    if parts.is_cuda:
        from stoker.kernels import adam_on_gpu

        adam_on_gpu.step(optimised, parts, measured, terms)
    else:
        step_twin(optimised, parts, measured, terms)


def step_twin(optimised: Optimised, parts: Tensor, measured: Tensor, terms: AdamTerms) -> None:
    """`step` in plain torch."""
    gradient = parts.sum(1)
    policy_loss, value_loss, entropy, kl, clipped = measured.sum(1).unbind(1)
    total = policy_loss + terms.value * value_loss - terms.entropy * entropy
    norm = torch.linalg.vector_norm(gradient, dim=1)
    optimised.stopped.logical_or_(kl > STOP_AT * terms.kl)
    finite = norm.isfinite() & total.isfinite()
    makes = finite & ~optimised.stopped
    optimised.counts.add_(makes[:, None])
    gradient = gradient * (terms.most / (norm + 1e-6)).clamp(max=1.0)[:, None]
    mean, square = optimised.mean, optimised.square
    new_mean = torch.lerp(mean, gradient, 1 - BETAS[0])
    new_square = square * BETAS[1] + (1 - BETAS[1]) * gradient * gradient
    count = optimised.counts[:, 0].double()
    first, second = (1 - torch.exp(count * math.log(beta)) for beta in BETAS)
    size = (terms.rate / first.float())[:, None]
    change = size * new_mean / (new_square.sqrt() / second.float().sqrt()[:, None] + terms.eps)
    made = makes[:, None]
    for kept, new in ((mean, new_mean), (square, new_square)):
        kept.copy_(torch.where(made, new, kept))
    optimised.flat.sub_(torch.where(made, change, 0.0))
    counted = (total, policy_loss, value_loss, -entropy, kl, clipped, norm)
    optimised.tally.add_(torch.where(made, torch.stack(counted, 1), 0.0))
    optimised.made.add_(makes)
    optimised.skipped.add_(~finite)


class Adam:
    """Torch's fused Adam over parameters that lie apart, by name.

    Not `torch.optim`'s: that imports torch's compiler, which takes longer than many a run.
    """

    def __init__(self, parameters: Mapping[str, Tensor], eps: float) -> None:
        self._parameters, self._eps = list(parameters.values()), eps
        names = ("step", "exp_avg", "exp_avg_sq")
        self.state = {
            f"{key}.{name}": torch.zeros_like(value if key != "step" else value.flatten()[0])
            for key in names
            for name, value in parameters.items()
        }
        """As torch names it: `exp_avg.NAME`, say."""
        self._steps, self._means, self._squares = (
            [self.state[f"{key}.{name}"] for name in parameters] for key in names
        )
        self._scale = torch.ones(())
        on_host = [self._scale, *self._steps] if self._steps[0].device.type == "cpu" else []
        # The same memory, without torch's way to it, which takes longer than the work.
        self._scale_on_host, *self._counts = [x.view(1).numpy() for x in on_host] or [np.ones(1)]

    @torch.no_grad()
    def step(self, rate: Tensor, skip: Tensor) -> None:
        """Update by the parameters' `grad`; not where `skip` is 1, which nobody fetches."""
        torch._foreach_add_(self._steps, 1)
        self._move(rate, found_inf=skip)
        torch._foreach_sub_(self._steps, [skip] * len(self._steps))

    def step_quickly(self, rate: Tensor, too_long: float) -> None:
        """The same in any case, where no gradients are recorded, on a CPU: less to start.

        Gradients are `too_long` times as long as they may be, if that is more than 1.
        """
        for count in self._counts:
            np.add(count, _ONE, out=count)
        self._scale_on_host[0] = too_long
        self._move(rate, grad_scale=self._scale if too_long > 1.0 else None)

    def _move(self, rate: Tensor, **what: Tensor | None) -> None:
        torch._fused_adam_(
            self._parameters,
            cast(list[Tensor], [parameter.grad for parameter in self._parameters]),
            self._means,
            self._squares,
            [],
            self._steps,
            lr=rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            **what,
        )
