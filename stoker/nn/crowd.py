"""Actor-critics side by side: the numbers of K policies in one block of memory.

Each stays a policy of its own, to act, be judged or be saved; one kernel can serve them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stoker.nn.actor_critic import ActorCritic
from stoker.nn.normalise import NAMES, Moments, RunningMoments, update
from stoker.types import Way, as_it_is


class Crowd:
    """K policies of one shape, on their device. Their tensors become rows of the crowd's."""

    def __init__(self, policies: Sequence[ActorCritic], way: Way = as_it_is) -> None:
        self.policies, self._way = policies, way
        first = policies[0]
        self.shapes = {name: value.shape for name, value in first.named_parameters()}
        sizes = [shape.numel() for shape in self.shapes.values()]
        self.flat = torch.stack(
            [torch.cat([p.detach().flatten() for p in each.parameters()]) for each in policies]
        )
        """Parameters [K, P], one after the other as `named_parameters` has them."""
        for row, policy in zip(self.flat, policies, strict=True):
            for part, parameter in zip(row.split(sizes), policy.parameters(), strict=True):
                parameter.data = part.view_as(parameter)
        self.moments = _side_by_side([each.plain_moments for each in policies])
        """Of observations, [K, ...] each; None where they are not normalised."""

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The rows of something laid out as `flat`, cut up by parameter: [K, ...] each."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=1)
        pairs = zip(self.shapes.items(), parts, strict=True)
        return {name: part.unflatten(1, shape or (1,)) for (name, shape), part in pairs}

    def take_in(self, obs: Tensor) -> None:
        """Let what was seen [T, K * n, width] into the running statistics."""
        if self.moments is not None:
            self._way(_take_in)(self.moments, obs)

    def state(self) -> dict[str, Tensor]:
        """What `ActorCritic.state_dict` has of each, [K, ...]."""
        states = [each.state_dict() for each in self.policies]
        return {name: torch.stack([state[name] for state in states]) for name in states[0]}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for number, policy in enumerate(self.policies):
            policy.load_state_dict({name: value[number] for name, value in state.items()})


def _take_in(moments: Moments, obs: Tensor) -> None:
    rows = obs.unflatten(1, (len(moments.seen), -1)).transpose(0, 1).flatten(1, 2)
    update(moments, rows, torch.ones_like(rows[..., 0], dtype=torch.bool))


def _side_by_side(modules: Sequence[RunningMoments | None]) -> Moments | None:
    if modules[0] is None:
        return None
    held = [module for module in modules if module is not None]
    stacked = Moments(*map(torch.stack, zip(*(module.own() for module in held), strict=True)))
    for number, module in enumerate(held):
        for name, rows in zip(NAMES, stacked, strict=True):
            setattr(module, name, rows[number])
    return stacked
