"""The plan of a sweep: what all its trials have in common, and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from stoker.config.check import divisors, largest_divisor
from stoker.config.load import from_flat, overlay
from stoker.sweep.course import Horizon
from stoker.sweep.space import TOTAL_STEP, Space, Value, understand

Pruner = Literal["median", "halving", "none"]

ENDLESS = 10**12
"""Timesteps of a trial that a budget of time ends."""
_UNUSED: dict[str, Any] = {"eval_episodes": 0, "eval_every": 0, "require_reward": None}
"""A trial is judged by its training episodes: evaluations would take of its time."""


class Plan(NamedTuple):
    """What a sweep is. It does not change, but for the number of trials."""

    base: Mapping[str, Any]
    """All settings, flat; a trial's own are over them."""
    space: Space
    seeds: tuple[int, ...]
    """A trial trains with each, one after the other."""
    budget_s: float | None
    """Seconds that each seed trains; None is for the timesteps."""
    trials: int
    pruner: Pruner = "median"
    agents: int = 1
    """Of a population that trains several trials at once, with all their seeds; 1 is none."""

    @property
    def together(self) -> int:
        """Trials that one process trains."""
        return max(1, self.agents // len(self.seeds))

    @property
    def horizon(self) -> Horizon:
        """How long each seed trains."""
        if self.budget_s is not None:
            return Horizon("wall_s", self.budget_s)
        return Horizon("env_steps", float(self.base["timesteps"]))

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a storage to hold."""
        space = {name: spread.plain for name, spread in self.space.items()}
        return {**self._asdict(), "space": space, "seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Plan:
        """What `as_json` gave."""
        space = understand(held["space"], from_flat(held["base"]))
        return cls(**{**held, "space": space, "seeds": tuple(held["seeds"])})


def settings_for(
    base: Mapping[str, Any], drawn: Mapping[str, Value], seed: int | None = None
) -> dict[str, Any]:
    """All settings of a trial, such as a run can always be made of.

    n_steps follows from total_step, in_flight from n_envs where it did before, and PPO's batch_size
    is the largest divisor of the rollout up to what is drawn or given.
    """
    flat = {**base, **{name: value for name, value in drawn.items() if name != TOTAL_STEP}}
    if base["in_flight"] in (0, base["n_envs"]) and "in_flight" not in drawn:
        flat["in_flight"] = flat["n_envs"] if base["in_flight"] else 0
    flat |= _rollout(flat, base, drawn)
    if seed is not None:
        flat |= {"seed": seed, **_UNUSED}
    config, problems = overlay(from_flat(base), flat)
    assert not problems, problems  # the space was checked
    return config.flat()


def crowd_settings(
    base: Mapping[str, Any], drawn: Sequence[Mapping[str, Value]], seeds: Sequence[int]
) -> dict[str, Any]:
    """Those of a population that trains several trials at once: agent k belongs to the trial
    k // len(seeds), so each agent has a seed of its own."""
    each = [one for one in drawn for _ in seeds]
    vary = {name: {"each": [one[name] for one in each]} for name in drawn[0]}
    own = {"population": len(each), "vary": vary}
    config, problems = overlay(from_flat(base), {**settings_for(base, {}, seeds[0]), **own})
    assert not problems, problems  # the space was checked
    return config.flat()


def _rollout(
    flat: Mapping[str, Any], base: Mapping[str, Any], drawn: Mapping[str, Value]
) -> dict[str, int]:
    n_envs, n_steps = int(flat["n_envs"]), int(flat["n_steps"])
    if TOTAL_STEP in drawn:
        n_steps = max(1, round(int(str(drawn[TOTAL_STEP])) / n_envs))
    aim = int(base["batch_size"] if flat["batch_size"] == "auto" else flat["batch_size"])
    divides = flat["algo"] == "ppo"
    size = _minibatch(n_envs * n_steps, aim) if divides else aim
    return {"n_steps": n_steps, "batch_size": size}


def _minibatch(total: int, aim: int) -> int:
    size = largest_divisor(total, aim)
    return size if size > 1 or total == 1 else divisors(total)[1]  # one row has no deviation
