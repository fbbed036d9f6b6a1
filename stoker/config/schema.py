"""Every setting, in five groups of frozen dataclasses with a docstring a field.

In the code settings are grouped, so that a room takes only its own group; one of them is that of
the run's algorithm (`config.algorithms`). In files and flags they are flat (`n_envs: 8`,
`--n-envs 8`), so field names are unique across groups. Fields without a default get theirs from
the preset tables, by algorithm and device: a default lives in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from stoker.config.algorithms import ALGORITHMS, LearningSettings
from stoker.config.algorithms import DQNSettings as DQNSettings
from stoker.config.algorithms import PPOSettings as PPOSettings
from stoker.config.written import COUNT, MAPPING, SIZES, VARY, also


@dataclass(frozen=True, kw_only=True)
class FaultSettings:
    """Faults: what environments and workers may do before the run stops, and for how long."""

    max_faults: Annotated[int, COUNT] = 10
    """Faults of environments and workers that are mended within `fault_window`; one more stops
    the run, with a checkpoint."""
    fault_window: float = 300.0
    """Seconds after which a mended fault no longer counts."""
    bad_values: Literal["stop", "truncate"] = "stop"
    """What to do about NaN, infinity, wrong shapes, dtypes or bounds: `stop` the run, or
    `truncate` the episode and count a fault."""
    check_bounds: bool = True
    """Whether an observation outside of its space's bounds is a bad value."""
    start_deadline: float = 120.0
    """Seconds in which a worker must have made its environments."""
    reset_deadline: float = 60.0
    """Seconds that a reset may take in a worker, before it counts as hung and is restarted."""
    step_deadline: float = 60.0
    """Seconds that a step may take in a worker, before it counts as hung and is restarted."""
    stall_after: float = 0.02
    """Seconds after which a step that is not done no longer holds up the other environments of
    its worker: another thread goes on with them. 0 never does that."""


@dataclass(frozen=True, kw_only=True)
class EnvSettings(FaultSettings):
    """Environment: what to train on and how to step it."""

    env: Annotated[str, also("env_id")] = "CartPole-v1"
    """A Gymnasium id, or `module:attr` where attr is an environment class or a function that
    makes one."""
    env_kwargs: Annotated[dict[str, Any], MAPPING] = field(default_factory=dict)
    """Keyword arguments for the environment, as YAML: `'{gravity: 9.8}'`."""
    n_envs: Annotated[int, COUNT, also("num_envs", "worker_num")]
    """How many environments step together."""
    pool: Literal["auto", "inline", "process", "io", "ray", "tensor"] = "auto"
    """Where environments run: in this process; in worker processes (`--subproc` for short); or, if
    they spend their steps waiting (`io`), all at once in worker processes, in threads or, where
    `step` is a coroutine, as such. Tensor environments run on the device (`tensor`), and nowhere
    else. `auto` times a few steps and picks the quickest. `ray` steps them on the machines of a Ray
    cluster, if asked to."""
    n_workers: Annotated[int, COUNT] = 0
    """Worker processes; 0 is one a core (on a Ray cluster, but for those that the learner
    needs)."""
    in_flight: Annotated[int, COUNT] = 0
    """Environments of the io pool, each with a step in flight. They share the rollout: n_steps is
    the total batch over them. 0: n_envs if that is asked for, else as many as keep the cores busy,
    by Little's law."""
    max_lag: Annotated[int, COUNT] = 4
    """Iterations that the policy which acts may be ahead of a decision in flight in the io pool;
    past that, what comes of it is dropped."""
    collect: Literal["auto", "step", "overlap", "interleave"] = "auto"
    """`overlap` collects the next rollout while the last one is learned from, with a policy that is
    one iteration old; `step` takes turns, so that the same seed gives the same bits. `auto`
    overlaps where environments step in other processes, if that is seen to pay. `interleave` is for
    DQN on a CPU: updates are made while worker processes step, in one thread, with the same bits
    for the same seed; `auto` takes it there, unless steps take very different times."""

    @property
    def in_processes(self) -> bool:
        """Whether environments step in worker processes of this machine, by the pool's name."""
        return self.pool in ("process", "io")

    @property
    def in_workers(self) -> bool:
        """Whether they step in workers, be it on other machines."""
        return self.in_processes or self.pool == "ray"


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Network: actor and critic, or what actions are worth."""

    network_arch: Annotated[tuple[int, ...], SIZES, also("net_arch")]
    """Hidden layers, as in `1024,512,256`."""
    critic_arch: Annotated[tuple[int, ...], SIZES] = ()
    """Hidden layers of the critic, where they are to be others than the actor's (PPO)."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Between the layers."""
    shared_trunk: bool = False
    """One trunk for actor and critic, instead of one each (PPO)."""
    ortho_init: bool = True
    """Orthogonal initialisation past the first layer (gain 0.01 for the policy's last)."""
    log_std_init: float = 0.0
    """Log of the first standard deviation of continuous actions (PPO)."""

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """Hidden layers of the critic, said apart or not."""
        return self.critic_arch or self.network_arch


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """Compute: where and how the update runs."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    """`auto` is the GPU where there is one."""
    executor: Literal["auto", "eager", "compile", "graph"] = "auto"
    """How updates run: eager kernels, torch.compile, or a CUDA graph, which spares the host nearly
    all of the work. `auto` is the graph on a GPU."""
    compile_in: Literal["background", "foreground"] = "background"
    """`background` trains eagerly until what is compiled is ready; `foreground` waits for it, so
    that the same seed gives the same bits."""
    kernels: Literal["auto", "torch", "fused"] = "auto"
    """What acts and learns where environments are tensors: torch's kernels, or Stoker's own, of
    which a few make an update (on a CPU they are plain torch). `auto` trains with torch's at once,
    and on a GPU goes over to its own when these are built, if they can serve the network and the
    run lasts. `fused` waits for them."""
    micro_batch: Annotated[int, COUNT] = 0
    """Rows of a minibatch that go through the network at once; their gradients are summed, so that
    the update is the same. 0: all of them until memory runs out, then half as many, and so on. Not
    for Stoker's own kernels."""
    precision: Literal["tf32", "fp32", "bf16"] = "tf32"
    """Of matrix products on a GPU. `bf16` is for Stoker's own kernels, which keep weights, sums and
    the optimiser in float32; torch's take it for tf32."""
    torch_threads: Annotated[int, COUNT] = 1
    """CPU threads of the learner."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Run: how long, what to keep, when to look."""

    timesteps: Annotated[int, COUNT, also("total_timesteps")] = 100_000
    """Environment steps to train for, over all environments; rounded up to whole rollouts."""
    seed: Annotated[int, COUNT] = 0
    """Seeds the environments, the policy and the shuffling."""
    population: Annotated[int, COUNT] = 1
    """Agents that train at once, where environments are tensors. Each has a seed, one apart from
    the next, and n_envs environments of its own, and makes the given timesteps."""
    vary: Annotated[dict[str, Any], VARY] = field(default_factory=dict)
    """What the agents of a population differ in besides: `lr=1e-4..1e-2 ent_coef=0,0.01`. Each
    draws a number from a range (by its logarithm where both ends are above 0) or from a list, by
    its own number and the seed. For learning_rate, clip_range, ent_coef and vf_coef."""
    run_name: str = ""
    """Name of the run's folder; empty makes one from environment, seed and time."""
    runs_dir: str = "runs"
    """Where run folders lie."""
    log_every: Annotated[int, COUNT] = 0
    """Iterations between log lines; 0 logs each, or four times a second where environments step on
    the device, or DQN learns, and iterations are shorter than that."""
    checkpoint_every: Annotated[int, COUNT] = 0
    """Environment steps between checkpoints; 0 makes ten over the run."""
    keep_checkpoints: Annotated[int, COUNT] = 3
    """How many of the newest checkpoints to keep, besides the best."""
    eval_every: Annotated[int, COUNT] = 0
    """Environment steps between evaluations; 0 evaluates at the end only."""
    eval_episodes: Annotated[int, COUNT] = 20
    """Episodes of an evaluation; 0 never evaluates."""
    eval_max_steps: Annotated[int, COUNT] = 10_000
    """An evaluation episode longer than this is given up."""
    monitor: bool = True
    """Sample what threads, cores and the GPU do while training: for `gpu/...` in the log, and for
    `stoker report` (docs/monitor.md)."""
    stop_deadline: float = 30.0
    """Seconds after Ctrl-C or SIGTERM in which the iteration may end and be saved."""
    require_reward: float | None = None
    """Leave with exit code 1 if the final mean reward is below this."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    env: EnvSettings
    learning: LearningSettings
    network: NetworkSettings
    compute: ComputeSettings
    run: RunSettings

    @property
    def ppo(self) -> PPOSettings:
        """What PPO learns by, where that is the algorithm."""
        assert isinstance(self.learning, PPOSettings), "asked of a run with another algorithm"
        return self.learning

    @property
    def dqn(self) -> DQNSettings:
        """What DQN learns by, where that is the algorithm."""
        assert isinstance(self.learning, DQNSettings), "asked of a run with another algorithm"
        return self.learning

    @property
    def total_batch(self) -> int:
        """Rows of a rollout: n_envs x n_steps, never the reverse."""
        return self.env.n_envs * self.learning.n_steps

    @property
    def minibatch(self) -> int:
        """Rows of a minibatch, once `auto` has been resolved."""
        size = self.learning.batch_size
        assert isinstance(size, int), "batch_size is resolved when a config is"
        return size

    @property
    def rows_at_once(self) -> int:
        """Rows of a minibatch that go through the network at once, as far as is known."""
        return min(self.compute.micro_batch or self.minibatch, self.minibatch)

    @property
    def n_minibatches(self) -> int:
        return self.total_batch // self.minibatch

    @property
    def n_iterations(self) -> int:
        return math.ceil(self.run.timesteps / self.total_batch)

    def flat(self) -> dict[str, Any]:
        """Every setting by its one name, as in a file."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for group in fields(self)
            for name, value in vars(getattr(self, group.name)).items()
        }


def groups_of(algo: str) -> dict[str, type[Any]]:
    """The fields of `Config` and their types, where `algo` is the algorithm."""
    return {
        "env": EnvSettings,
        "learning": ALGORITHMS[algo],
        "network": NetworkSettings,
        "compute": ComputeSettings,
        "run": RunSettings,
    }
