"""The settings that rl-baselines3-zoo has for an environment, and the same in either's words.

Both sides are configured from one row, so that neither can differ. What is not in a row is what
Stable-Baselines3 has by default. Numbers that fall linearly to 0 over the run are `Falling`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

_ALIKE = {"pool": "inline", "collect": "step", "monitor": False}
"""Stoker in one process and one thread, by turns, as Stable-Baselines3 does it."""


class Falling(float):
    """A number at the start of a run; it falls linearly to 0."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An algorithm on an environment."""

    algo: ClassVar[str]

    env: str
    timesteps: int
    """As many as the zoo has."""
    learning_rate: float
    batch_size: int
    gamma: float = 0.99
    n_envs: int = 1
    normalize: bool = False
    """Observations and rewards, by running statistics."""
    seeds: int = 5
    shortened: int = 0
    """Steps instead of the zoo's, where these would take too long; no schedule may fall then."""
    make: str = ""
    """What makes the environment, where its name does not."""
    device: str = "cpu"
    apart: tuple[str, ...] = ()
    """In what the case differs from the zoo's, or the sides from each other."""

    @property
    def steps(self) -> int:
        return self.shortened or self.timesteps

    @property
    @abstractmethod
    def ours(self) -> dict[str, Any]:
        """Stoker's settings."""

    @property
    @abstractmethod
    def theirs(self) -> dict[str, Any]:
        """Stable-Baselines3's settings, with schedules in the zoo's manner of writing."""


@dataclass(frozen=True, kw_only=True)
class PPOCase(Case):
    """PPO on an environment."""

    algo = "PPO"

    n_steps: int
    n_epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 3e-4
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    network: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    ortho_init: bool = True
    log_std_init: float = 0.0
    images: bool = False
    """Actor and critic share the convolutions, and a layer of 512 which Stable-Baselines3 has after
    them by itself. The network is Stoker's alone then."""

    @property
    def ours(self) -> dict[str, Any]:
        return {
            **_ALIKE,
            "device": self.device,
            "n_envs": self.n_envs,
            "n_steps": self.n_steps,
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate": float(self.learning_rate),
            "lr_schedule": _schedule(self.learning_rate),
            "gamma": self.gamma,
            "gae_lambda": self.gae_lambda,
            "clip_range": float(self.clip_range),
            "clip_schedule": _schedule(self.clip_range),
            "ent_coef": self.ent_coef,
            "vf_coef": self.vf_coef,
            "max_grad_norm": self.max_grad_norm,
            "target_kl": None,
            "normalize_obs": self.normalize,
            "normalize_reward": self.normalize,
            "network_arch": list(self.network),
            "activation": self.activation,
            "ortho_init": self.ortho_init,
            "log_std_init": self.log_std_init,
            "shared_trunk": self.images,
        }

    @property
    def theirs(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "n_steps": self.n_steps,
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate": _written(self.learning_rate),
            "gamma": self.gamma,
            "gae_lambda": self.gae_lambda,
            "clip_range": _written(self.clip_range),
            "ent_coef": self.ent_coef,
            "vf_coef": self.vf_coef,
            "max_grad_norm": self.max_grad_norm,
            "policy_kwargs": {
                "net_arch": [] if self.images else list(self.network),
                "activation_fn": self.activation,
                "ortho_init": self.ortho_init,
                "log_std_init": self.log_std_init,
            },
        }


@dataclass(frozen=True, kw_only=True)
class DQNCase(Case):
    """DQN on one environment at a time."""

    algo = "DQN"

    buffer_size: int
    learning_starts: int
    target_update_interval: int
    """Environment steps between copies to the target network."""
    train_freq: int
    """Environment steps between lessons."""
    gradient_steps: int
    """Updates of a lesson."""
    exploration_fraction: float
    exploration_final_eps: float
    max_grad_norm: float = 10.0
    network: tuple[int, ...] = (256, 256)

    @property
    def ours(self) -> dict[str, Any]:
        ratio = self.gradient_steps / self.train_freq
        return {
            **_ALIKE,
            "device": self.device,
            "n_envs": self.n_envs,
            "n_steps": self.train_freq,
            "update_ratio": ratio,
            "batch_size": self.batch_size,
            "buffer_size": self.buffer_size,
            # The first lesson is that after the first steps past the start, and is a whole one.
            "learning_starts": self.learning_starts // self.train_freq * self.train_freq,
            "learning_rate": self.learning_rate,
            "lr_schedule": "constant",
            "gamma": self.gamma,
            # Theirs moves while they collect, so not more than once between two lessons.
            "target_every": max(round(self.target_update_interval * ratio), self.gradient_steps),
            "epsilon_start": 1.0,
            "epsilon_end": self.exploration_final_eps,
            "epsilon_fraction": self.exploration_fraction,
            "max_grad_norm": self.max_grad_norm,
            "n_step_return": 1,
            "double": False,
            "normalize_obs": self.normalize,
            "network_arch": list(self.network),
            "activation": "relu",
            "ortho_init": False,
        }

    @property
    def theirs(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "train_freq": self.train_freq,
            "gradient_steps": self.gradient_steps,
            "batch_size": self.batch_size,
            "buffer_size": self.buffer_size,
            "learning_starts": self.learning_starts,
            "learning_rate": self.learning_rate,
            "gamma": self.gamma,
            "target_update_interval": self.target_update_interval,
            "exploration_initial_eps": 1.0,
            "exploration_final_eps": self.exploration_final_eps,
            "exploration_fraction": self.exploration_fraction,
            "max_grad_norm": self.max_grad_norm,
            "n_steps": 1,
            "policy_kwargs": {"net_arch": list(self.network), "activation_fn": "relu"},
        }


def _schedule(number: float) -> str:
    return "linear" if isinstance(number, Falling) else "constant"


def _written(number: float) -> float | str:
    return f"lin_{float(number)}" if isinstance(number, Falling) else number


_MUJOCO: dict[str, Any] = {
    "n_envs": 1,
    "n_steps": 512,
    "normalize": True,
    "network": (256, 256),
    "activation": "relu",
    "ortho_init": False,
    "log_std_init": -2.0,
    "seeds": 3,
}
_NO_SDE = "neither side explores by gSDE, which the zoo uses here and Stoker does not have"
_OWN_SCALE = "Stoker's actions of -1 to 1 cover the bounds, -2 to 2; SB3's are clipped there"
_PONG = "bench.pong:make"

ZOO: tuple[Case, ...] = (
    PPOCase(
        env="CartPole-v1",
        timesteps=100_000,
        n_envs=8,
        n_steps=32,
        n_epochs=20,
        batch_size=256,
        learning_rate=Falling(1e-3),
        clip_range=Falling(0.2),
        gamma=0.98,
        gae_lambda=0.8,
    ),
    PPOCase(
        env="Acrobot-v1",
        timesteps=1_000_000,
        n_envs=16,
        n_steps=256,
        n_epochs=4,
        gae_lambda=0.94,
        normalize=True,
        seeds=10,
        shortened=300_000,
    ),
    PPOCase(
        env="Pendulum-v1",
        timesteps=100_000,
        n_envs=4,
        n_steps=1024,
        learning_rate=1e-3,
        gamma=0.9,
        apart=(_NO_SDE, _OWN_SCALE),
    ),
    PPOCase(
        env="MountainCar-v0",
        timesteps=1_000_000,
        n_envs=16,
        n_steps=16,
        n_epochs=4,
        gae_lambda=0.98,
        normalize=True,
    ),
    PPOCase(
        env="LunarLander-v3",
        timesteps=1_000_000,
        n_envs=16,
        n_steps=1024,
        n_epochs=4,
        gamma=0.999,
        gae_lambda=0.98,
        ent_coef=0.01,
        seeds=10,
        apart=("the zoo's settings are those of LunarLander-v2",),
    ),
    PPOCase(
        env="HalfCheetah-v5",
        timesteps=1_000_000,
        n_epochs=20,
        learning_rate=2.0633e-05,
        gamma=0.98,
        gae_lambda=0.92,
        clip_range=0.1,
        ent_coef=0.000401762,
        vf_coef=0.58096,
        max_grad_norm=0.8,
        apart=("the zoo's settings are those of HalfCheetah-v3",),
        **_MUJOCO,
    ),
    PPOCase(
        env="Hopper-v5",
        timesteps=1_000_000,
        n_epochs=5,
        batch_size=32,
        learning_rate=9.80828e-05,
        gamma=0.999,
        gae_lambda=0.99,
        ent_coef=0.00229519,
        vf_coef=0.835671,
        max_grad_norm=0.7,
        apart=("the zoo's settings are those of Hopper-v3",),
        **_MUJOCO,
    ),
    PPOCase(
        env="ALE/Pong-v5",
        timesteps=10_000_000,
        n_envs=8,
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=Falling(2.5e-4),
        clip_range=Falling(0.1),
        ent_coef=0.01,
        network=(512,),
        activation="relu",
        seeds=3,
        images=True,
        make=_PONG,
        device="auto",
        apart=(
            "the zoo's settings are those of Atari's games, on PongNoFrameskip-v4",
            "after the convolutions Stoker has layers of 256 and 512, SB3 has one of 512",
        ),
    ),
    DQNCase(
        env="CartPole-v1",
        timesteps=50_000,
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        seeds=45,
    ),
    DQNCase(
        env="Acrobot-v1",
        timesteps=100_000,
        learning_rate=6.3e-4,
        batch_size=128,
        buffer_size=50_000,
        learning_starts=0,
        target_update_interval=250,
        train_freq=4,
        gradient_steps=4,
        exploration_fraction=0.12,
        exploration_final_eps=0.1,
    ),
    DQNCase(
        env="MountainCar-v0",
        timesteps=120_000,
        learning_rate=4e-3,
        batch_size=128,
        buffer_size=10_000,
        learning_starts=1000,
        target_update_interval=600,
        train_freq=16,
        gradient_steps=8,
        exploration_fraction=0.2,
        exploration_final_eps=0.07,
        gamma=0.98,
    ),
    DQNCase(
        env="LunarLander-v3",
        timesteps=100_000,
        learning_rate=6.3e-4,
        batch_size=128,
        buffer_size=50_000,
        learning_starts=0,
        target_update_interval=250,
        train_freq=4,
        gradient_steps=4,
        exploration_fraction=0.12,
        exploration_final_eps=0.1,
        apart=("the zoo's settings are those of LunarLander-v2",),
    ),
)
"""One row a case; rl-baselines3-zoo writes gradient_steps of -1 where they are as many as steps."""
