"""Every rule between settings, checked once, early, all at once, with the arithmetic shown."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from stoker.config.schema import Config, DQNSettings, PPOSettings
from stoker.config.vary import Each, read_vary

MOST_ROWS = 2**31
"""Rows of the largest rollout: past any memory, and the divisors of more take long to find."""

MOST_THREADS = 1024
"""More than there are cores anywhere; tens of thousands end the process."""


def divisors(total: int) -> list[int]:
    """All divisors of `total`, ascending."""
    small = [d for d in range(1, int(total**0.5) + 1) if total % d == 0]
    return sorted({*small, *(total // d for d in small)})


def largest_divisor(total: int, at_most: int) -> int:
    """What `--batch-size auto` takes: the largest divisor of `total` up to `at_most`."""
    return max(d for d in divisors(total) if d <= max(1, at_most))


def find_problems(config: Config) -> list[str]:
    """Every reason why `config` cannot work; empty if there is none."""
    return [
        *_out_of_range(config),
        *_not_finite(config),
        *_batch(config),
        *_replay(config),
        *_names(config),
        *_vary(config),
    ]


def _out_of_range(config: Config) -> Iterator[str]:
    env, learning, run = config.env, config.learning, config.run
    for name, value, least in (
        ("n_envs", env.n_envs, 1),
        ("n_workers", env.n_workers, 0),
        ("in_flight", env.in_flight, 0),
        ("max_lag", env.max_lag, 1),
        ("max_faults", env.max_faults, 0),
        ("n_steps", learning.n_steps, 1),
        ("max_bad_updates", learning.max_bad_updates, 0),
        ("timesteps", run.timesteps, 1),
        ("seed", run.seed, 0),
        ("population", run.population, 1),
        ("log_every", run.log_every, 0),
        ("checkpoint_every", run.checkpoint_every, 0),
        ("keep_checkpoints", run.keep_checkpoints, 1),
        ("eval_every", run.eval_every, 0),
        ("eval_episodes", run.eval_episodes, 0),
        ("eval_max_steps", run.eval_max_steps, 1),
        ("micro_batch", config.compute.micro_batch, 0),
        ("torch_threads", config.compute.torch_threads, 1),
        *_least(config),
    ):
        if value < least:
            yield f"{name} is {value}; it must be {least} or more."
    if config.compute.torch_threads > MOST_THREADS:
        yield f"torch_threads is {config.compute.torch_threads}; it must be {MOST_THREADS} or less."
    if run.seed >= 2**63:
        yield f"seed is {run.seed}; it must be below 2**63."
    for name, number, low, high in (
        ("gamma", learning.gamma, 0.0, 1.0),
        *_shares(config),
    ):
        if not low <= number <= high:
            yield f"{name} is {number:g}; it must lie between {low:g} and {high:g}."
    for name, positive in (
        ("learning_rate", learning.learning_rate),
        ("max_grad_norm", learning.max_grad_norm),
        ("adam_eps", learning.adam_eps),
        ("stop_deadline", run.stop_deadline),
        ("fault_window", env.fault_window),
        ("start_deadline", env.start_deadline),
        ("reset_deadline", env.reset_deadline),
        ("step_deadline", env.step_deadline),
        *_positive(config),
    ):
        if positive is not None and not positive > 0:
            yield f"{name} is {positive:g}; it must be above 0."
    for name, weight in (
        ("stall_after", env.stall_after),
        *_weights(config),
    ):
        if not weight >= 0:
            yield f"{name} is {weight:g}; it must be 0 or more."
    if not config.network.network_arch or min(config.network.network_arch) < 1:
        sizes = ",".join(map(str, config.network.network_arch))
        yield f"network_arch is '{sizes}'; it must name at least one layer, each 1 or wider."
    yield from _critic(config)


def _critic(config: Config) -> Iterator[str]:
    network = config.network
    sizes = ",".join(map(str, network.critic_arch))
    if min(network.critic_arch, default=1) < 1:
        yield f"critic_arch is '{sizes}'; each layer must be 1 or wider."
    if network.critic_arch and isinstance(config.learning, DQNSettings):
        yield f"critic_arch is '{sizes}', and DQN has no critic. Leave it out."
    if network.critic_sizes != network.network_arch and network.shared_trunk:
        yield (
            f"critic_arch is '{sizes}', and shared_trunk is on: actor and critic have the same "
            "layers. Leave one of the two out."
        )


def _least(config: Config) -> list[tuple[str, int, int]]:
    """Counts of the algorithm, and the least that each may be."""
    match config.learning:
        case PPOSettings() as ppo:
            return [("n_epochs", ppo.n_epochs, 1)]
        case DQNSettings() as dqn:
            return [
                ("buffer_size", dqn.buffer_size, 1),
                ("learning_starts", dqn.learning_starts, 0),
                ("n_step_return", dqn.n_step_return, 1),
                ("target_every", dqn.target_every, 1),
                ("epsilon_steps", dqn.epsilon_steps, 0),
            ]
    return []


def _shares(config: Config) -> list[tuple[str, float, float, float]]:
    """Numbers of the algorithm that lie between two others."""
    match config.learning:
        case PPOSettings() as ppo:
            return [("gae_lambda", ppo.gae_lambda, 0.0, 1.0)]
        case DQNSettings() as dqn:
            names = ("per_alpha", "per_beta", "epsilon_start", "epsilon_end", "epsilon_fraction")
            return [(name, getattr(dqn, name), 0.0, 1.0) for name in (*names, "tau")]
    return []


def _positive(config: Config) -> list[tuple[str, float | None]]:
    """Numbers of the algorithm that are above 0, or None."""
    match config.learning:
        case PPOSettings() as ppo:
            names = ("clip_range", "target_kl", "clip_range_vf")
            return [(name, getattr(ppo, name)) for name in names]
        case DQNSettings() as dqn:
            return [("update_ratio", dqn.update_ratio), ("tau", dqn.tau)]
    return []


def _weights(config: Config) -> list[tuple[str, float]]:
    """Numbers of the algorithm that are 0 or more."""
    match config.learning:
        case PPOSettings() as ppo:
            return [("ent_coef", ppo.ent_coef), ("vf_coef", ppo.vf_coef)]
    return []


def _not_finite(config: Config) -> Iterator[str]:
    """Rules above hold for infinity, or are about other settings."""
    for name, value in config.flat().items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name} is {value:g}; it must be finite."


def _batch(config: Config) -> Iterator[str]:
    size, total, n_steps = config.learning.batch_size, config.total_batch, config.learning.n_steps
    if min(config.env.n_envs, n_steps) < 1:
        return
    if total > MOST_ROWS:
        yield (
            f"n_envs {config.env.n_envs} x n_steps {n_steps} is a rollout of {total:,} "
            f"rows; it must be at most {MOST_ROWS:,}."
        )
    elif not isinstance(size, int):
        return
    elif size < 1:
        yield f"batch_size is {size}; it must be 1 or more, or auto."
    elif not isinstance(config.learning, PPOSettings):
        return
    elif total % size:
        below = [d for d in divisors(total) if d < size][-2:]
        above = [d for d in divisors(total) if d > size][:2]
        yield (
            f"batch_size {size} does not divide the total batch: n_envs {config.env.n_envs} x "
            f"n_steps {n_steps} = {total}, and {total} / {size} leaves {total % size}. "
            f"The nearest that divide it are {', '.join(map(str, below + above))}; "
            "or use batch_size auto."
        )
    elif size == 1 and config.learning.normalize_advantage:
        yield (
            "batch_size is 1 and normalize_advantage is on: one row has no deviation. Use a "
            "batch_size of 2 or more, or normalize_advantage false (--no-normalize-advantage)."
        )


def _replay(config: Config) -> Iterator[str]:
    dqn, n_envs = config.learning, config.env.n_envs
    if not isinstance(dqn, DQNSettings) or min(n_envs, dqn.n_steps, dqn.n_step_return) < 1:
        return
    least = least_replay(config)
    if 1 <= dqn.buffer_size < least:
        yield (
            f"buffer_size is {dqn.buffer_size}, and {n_envs} environments x (4 x n_steps "
            f"{dqn.n_steps} + n_step_return {dqn.n_step_return} + 2) = {least} steps at least "
            "must fit. Use a larger buffer_size, or fewer n_envs or n_steps."
        )
    if dqn.epsilon_end > dqn.epsilon_start:
        yield (
            f"epsilon_end {dqn.epsilon_end:g} is above epsilon_start {dqn.epsilon_start:g}; "
            "exploration falls."
        )
    if config.run.population > 1:
        yield (
            f"population is {config.run.population}, and algo is dqn: populations train with PPO. "
            "Leave it out, or use algo ppo."
        )
    for name, value, others in (
        ("executor", config.compute.executor, ("auto", "eager", "graph")),
        ("kernels", config.compute.kernels, ("auto", "torch")),
        ("micro_batch", config.compute.micro_batch, (0,)),
    ):
        if value not in others:
            known = " or ".join(map(str, others))
            yield f"{name} is {value}, which is PPO's, and algo is dqn; use {known}."


def least_replay(config: Config) -> int:
    """Steps that a replay must hold: a rollout whose every step is an episode, and what waits."""
    dqn = config.dqn
    return config.env.n_envs * (4 * dqn.n_steps + dqn.n_step_return + 2)


def _names(config: Config) -> Iterator[str]:
    if not config.env.env.strip():
        yield "env is empty; name a Gymnasium id such as CartPole-v1, or module:attr."
    try:
        json.dumps(config.env.env_kwargs, allow_nan=False)
    except (TypeError, ValueError) as error:
        yield (
            f"env_kwargs cannot be kept in a file: {error}. Use plain numbers, words, lists and "
            "mappings, or name a function that makes the environment."
        )
    if config.run.run_name:
        yield from name_problems(config.run.run_name)


def name_problems(run_name: str) -> Iterator[str]:
    """Why a run cannot be called so: it is a folder's name, and leads nowhere else."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run_name):
        yield (
            f"run_name {run_name!r} cannot be a folder's name; use up to 100 letters, digits, '.', "
            "'_' and '-', beginning with a letter or digit."
        )


def _vary(config: Config) -> Iterator[str]:
    spreads, problems = read_vary(config.run.vary)
    yield from problems
    if config.run.vary and not isinstance(config.learning, PPOSettings):
        yield "vary is what agents of a population differ in, and those train with PPO."
        return
    for name, spread in spreads.items():
        for number in spread.limits:
            drawn: dict[str, Any] = {name: number}
            learning = dataclasses.replace(config.learning, **drawn)
            found = _out_of_range(dataclasses.replace(config, learning=learning))
            yield from (f"vary: {one}" for one in found if one.startswith(f"{name} is "))
        if isinstance(spread, Each) and len(spread.values) != config.run.population:
            yield (
                f"vary: {name} has {len(spread.values)} numbers, one for each agent, and "
                f"population is {config.run.population}."
            )
    if config.run.vary and config.run.population == 1:
        yield (
            "vary is what agents of a population differ in, and population is 1. Add --population "
            "64, say (population: 64 in a file), or leave vary out."
        )
