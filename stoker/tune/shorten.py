"""Jobs whose iterations take long, with shorter rollouts: what a step costs stays the same."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from stoker.config.check import divisors, largest_divisor
from stoker.config.schema import Config
from stoker.monitor.verdict import Costs
from stoker.tune.pieces import Pieces

_FEWEST_STEPS = 8


class Shortened(NamedTuple):
    """A config whose iterations are `factor` times as short as those of the job."""

    config: Config
    factor: int
    update_ratio: float
    """What a row costs to learn from in the job, over what it costs here."""

    def costs(self, here: Costs, log_every: int) -> Costs:
        """What a step of the job costs, by what a step here does.

        Whatever is done once an iteration, or whenever it is logged, is as dear in both; where
        logs are so many seconds apart, they are so in both.
        """
        by_time = log_every == 0 and self.config.env.pool == "tensor"
        host = here.host if by_time else here.host / self.factor / max(1, log_every)
        return here._replace(learning=here.learning * self.update_ratio, host=host)


def iteration_s(config: Config, pieces: Pieces) -> float:
    """About what an iteration takes in step, by its pieces."""
    env, workers = pieces.env, max(1, config.env.n_workers)
    at_once = 0.0
    if env is not None:
        each = config.env.n_envs * env.step_cpu_s / workers
        at_once = max(each, env.step_wall_s) if config.env.pool == "io" else each
    deciding = pieces.inference_at[config.env.n_envs]
    updates = config.ppo.n_epochs * config.n_minibatches
    return config.ppo.n_steps * (at_once + deciding) + updates * pieces.update_at[config.minibatch]


def shortened_sizes(config: Config, factor: int) -> tuple[int, int]:
    """Steps and minibatch of a rollout that is so many times as short."""
    total = config.total_batch // factor
    whole = total % config.minibatch == 0
    size = config.minibatch if whole else largest_divisor(total, config.minibatch)
    return config.ppo.n_steps // factor, size


def factor_for(config: Config, seconds: float, most_s: float, whole: bool = False) -> int:
    """How many times as short to make iterations of so many seconds, to take at most `most_s`.

    With `whole`, no shorter than a minibatch, so that what an update takes need not be scaled.
    """
    steps, size = config.ppo.n_steps, config.minibatch
    possible = [d for d in divisors(steps) if steps // d >= min(steps, _FEWEST_STEPS)]
    if whole:
        possible = [d for d in possible if shortened_sizes(config, d)[1] == size]
    enough = [d for d in possible if seconds / d <= most_s]
    return enough[0] if enough else possible[-1]


def shortened(config: Config, factor: int, pieces: Pieces) -> Shortened:
    """`config` with rollouts so many times as short."""
    n_steps, size = shortened_sizes(config, factor)
    ppo = dataclasses.replace(config.ppo, n_steps=n_steps, batch_size=size)
    known = pieces.update_at
    ratio = (known[config.minibatch] / config.minibatch) / (known[size] / size)
    return Shortened(dataclasses.replace(config, learning=ppo), factor, ratio)
