"""Many agents at once: what they differ in, and how they compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.config.schema import Config
from stoker.config.vary import drawn_settings
from stoker.learn.fused import Scalars
from stoker.train.overlap import Decision


def scalars(config: Config, device: torch.device) -> Scalars:
    """Each agent's settings."""
    common = {name: getattr(config.ppo, name) for name in Scalars._fields}
    each = [{**common, **own} for own in _drawn(config)]
    columns = ([settings[name] for settings in each] for name in Scalars._fields)
    return Scalars(*(torch.tensor(column, device=device) for column in columns))


def described(config: Config) -> Decision:
    """Who trains, in words."""
    run = config.run
    spreads = ", ".join(f"{name} from {_in_words(held)}" for name, held in run.vary.items())
    seeds = f"seeds {run.seed} to {run.seed + run.population - 1}"
    return Decision(
        "population", f"{run.population:,} agents", f"{seeds}; {spreads or 'settings alike'}"
    )


class Standing(NamedTuple):
    """How one agent of several does; None is unknown, as none of its episodes has ended."""

    agent: int
    seed: int
    settings: dict[str, float]
    """Those that vary."""
    reward: float | None
    """Mean return of its last hundred episodes."""
    length: float | None
    """Their mean length."""


def ranked(config: Config, means: Tensor) -> list[Standing]:
    """The agents, best first, by the return and length [2, K] of each; NaN is unknown."""
    rewards, lengths = ([_known(x) for x in row] for row in means.tolist())  # sync: asked for
    first = config.run.seed
    standings = [
        Standing(agent, first + agent, own, rewards[agent], lengths[agent])
        for agent, own in enumerate(_drawn(config))
    ]
    return sorted(standings, key=lambda one: math.inf if one.reward is None else -one.reward)


class Spread(NamedTuple):
    """How far apart the agents' rewards lie; None is unknown."""

    best: float | None
    median: float | None
    worst: float | None


def spread(standings: Sequence[Standing]) -> Spread:
    """Over those whose reward is known."""
    rewards = [one.reward for one in standings if one.reward is not None]
    if not rewards:
        return Spread(None, None, None)
    return Spread(max(rewards), statistics.median(rewards), min(rewards))


def as_json(standings: Sequence[Standing], env_steps: int) -> dict[str, Any]:
    """What population.json holds."""
    return {
        "env_steps": env_steps,
        "reward": spread(standings)._asdict(),
        "agents": [one._asdict() for one in standings],
    }


def _drawn(config: Config) -> list[dict[str, float]]:
    run = config.run
    return drawn_settings(run.vary, run.seed, run.population)


def _in_words(held: str | list[float] | dict[str, list[float]]) -> str:
    if isinstance(held, dict):
        return "what each was given"
    return held if isinstance(held, str) else ", ".join(f"{value:g}" for value in held)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
