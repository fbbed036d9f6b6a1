"""What an agent learns by: the settings that every algorithm has, and those of each.

A run has one algorithm, so its settings are one group, `Config.learning`, of one of these classes.
A setting that several algorithms have means the same in each; its default is each one's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from stoker.config.written import BATCH, COUNT, also

Schedule = Literal["constant", "linear"]
Algo = Literal["ppo", "dqn"]


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """Learning: what every algorithm has."""

    algo: Algo = "ppo"
    """The algorithm: `ppo`, for any action space; or `dqn`, for discrete ones, which learns from
    a replay of past steps. `stoker train --algo dqn --help` shows what it can be told."""
    n_steps: Annotated[int, COUNT, also("num_steps")]
    """Steps of each environment in a rollout. The total batch is n_envs x n_steps."""
    batch_size: Annotated[int | Literal["auto"], BATCH, also("minibatch_size")]
    """Rows of a minibatch. With PPO it must divide the total batch; `auto` is the largest divisor
    up to the preset's size."""
    learning_rate: Annotated[float, also("lr")] = 5e-4
    """Adam's step size, at the start."""
    lr_schedule: Schedule = "linear"
    """`linear` falls to 0 over the run."""
    gamma: float = 0.99
    """Discount of future rewards."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    normalize_obs: bool = True
    """Scale vector observations by their running mean and deviation."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_bad_updates: Annotated[int, COUNT] = 50
    """How many updates may be skipped for a non-finite loss or gradient, with no good iteration in
    between, before the run rolls back to its last checkpoint (once; the next time it stops)."""


@dataclass(frozen=True, kw_only=True)
class PPOSettings(LearningSettings):
    """PPO: the rollout and the update."""

    n_epochs: Annotated[int, COUNT, also("update_epochs", "repeat_times")]
    """Passes over each rollout, reshuffled each time."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    clip_range: float = 0.2
    """How far the policy's ratio may move from 1 before its gradient is cut."""
    clip_schedule: Schedule = "constant"
    """`linear` falls to 0 over the run."""
    clip_range_vf: float | None = None
    """The same for the value function; None does not clip it."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    target_kl: float | None = 0.03
    """Stop a rollout's updates once its KL divergence passes 1.5 times this; None never stops."""
    normalize_advantage: bool = True
    """Scale each minibatch's advantages to mean 0 and deviation 1."""
    normalize_reward: bool = True
    """Divide rewards by the running deviation of the discounted return."""


@dataclass(frozen=True, kw_only=True)
class DQNSettings(LearningSettings):
    """DQN: the replay, exploration and the update."""

    algo: Algo = "dqn"
    """The algorithm: `ppo`, for any action space; or `dqn`, for discrete ones, which learns from
    a replay of past steps."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    normalize_obs: bool = False
    """Scale vector observations by their running mean and deviation."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    buffer_size: Annotated[int, COUNT]
    """Steps that the replay holds, over all environments; the oldest go first."""
    learning_starts: Annotated[int, COUNT] = 1000
    """Environment steps before the first update."""
    update_ratio: Annotated[float, also("gradient_ratio")] = 0.5
    """Updates for each environment step: 0.25 is one for every four steps."""
    n_step_return: Annotated[int, COUNT] = 3
    """Steps whose rewards are summed before the value of what is seen then is added. Sums stop at
    the end of an episode."""
    double: bool = True
    """The network that learns chooses the next action and the target network judges it, so that
    values are not overestimated."""
    dueling: bool = False
    """Learn what a state is worth apart from what each action adds to it."""
    per: bool = False
    """Prioritised replay: steps that were predicted badly are learned from more often."""
    per_alpha: float = 0.6
    """How much priorities matter: 0 is as without."""
    per_beta: float = 0.4
    """How much of the bias that this brings is corrected, at the start; 1 at the end of the run."""
    exploration: Literal["epsilon", "noisy"] = "epsilon"
    """How other actions than the best are tried: at random, now and then; or by noise in the
    network's last layers, of which it learns how much there is to be."""
    epsilon_start: float = 1.0
    """The share of random actions, at the start."""
    epsilon_end: float = 0.05
    """The share that is left, once it has fallen."""
    epsilon_fraction: float = 0.2
    """The share of the run over which epsilon falls."""
    epsilon_steps: Annotated[int, COUNT] = 0
    """Environment steps over which epsilon falls, where they are not to be a share of the run."""
    tau: float = 1.0
    """How far the target network moves to the one that learns whenever it is updated; 1 copies."""
    target_every: Annotated[int, COUNT] = 250
    """Updates between those of the target network."""


ALGORITHMS: dict[str, type[LearningSettings]] = {"ppo": PPOSettings, "dqn": DQNSettings}
"""The settings of each algorithm, by its name."""
