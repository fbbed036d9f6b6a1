"""DQN beside Stable-Baselines3's: the same settings and seeds, one after the other, by turns.

Without double targets, which SB3 does not have, and with the learning rate constant, as it is
there; all else is Stoker's own, but for the network in one case, which is SB3's own. Both have one
thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.peers.trial import Trial, in_process
from bench.record import Cases, Row, named
from bench.seeds import difference, mean_of
from bench.turns import by_turns, middle_ratio
from stoker.config import resolve
from stoker.config.schema import Config

_TIME_LIMIT_S = 1200.0
_ALIKE = {"double": False, "lr_schedule": "constant"}
_COMPARED = ("reward", "wall_s")
_SEEDS = range(10)
"""Of five, one that ends badly decides: best actions now and then go in circles, on either side."""


def _beside_sb3(env: str, steps: int, network: str) -> Iterator[Row]:
    ours: dict[str, Any] = {**_ALIKE, "network_arch": network, "device": "cpu"}
    config = resolve({"algo": "dqn", "env": env, **ours}, on_gpu=False)
    sizes = {"n_envs": config.env.n_envs, "n_steps": config.dqn.n_steps}
    settings: dict[str, dict[str, Any]] = {"stoker": ours | sizes, "sb3": _in_their_words(config)}
    found: dict[str, dict[str, list[float]]] = {
        side: {what: [] for what in _COMPARED} for side in ("ours", "peer")
    }

    def run(side: str, name: str) -> float:
        seed = _SEEDS[len(found[side]["reward"])]
        trial = Trial(name, "DQN", env, steps, seed, config.env.n_envs, False, settings[name])
        ended = in_process(trial, _TIME_LIMIT_S)
        for what in _COMPARED:
            found[side][what].append(round(getattr(ended, what), 2))
        return ended.wall_s

    sides = {"ours": partial(run, "ours", "stoker"), "peer": partial(run, "peer", "sb3")}
    took = by_turns(sides, len(_SEEDS))
    rewards = {side: mean_of(values["reward"]) for side, values in found.items()}
    yield Row(
        "dqn",
        f"{env}, {steps:,} steps, network {network}",
        round(sum(took["ours"]) / len(_SEEDS), 1),
        "s of training, smaller is better",
        round(sum(took["peer"]) / len(_SEEDS), 1),
        named("stable-baselines3"),
        round(middle_ratio(took["peer"], took["ours"]), 2),
        details={
            "reward": rewards,
            "difference_and_interval": difference(found["ours"]["reward"], found["peer"]["reward"]),
            "seeds": found,
            "settings": settings,
        },
    )


def _in_their_words(config: Config) -> dict[str, Any]:
    """With as many updates and moves of the target network as Stoker makes."""
    dqn, network = config.dqn, config.network
    return {
        "device": config.compute.device,
        "learning_rate": dqn.learning_rate,
        "buffer_size": dqn.buffer_size,
        "learning_starts": dqn.learning_starts,
        "batch_size": config.minibatch,
        "gamma": dqn.gamma,
        "train_freq": dqn.n_steps,
        "gradient_steps": round(dqn.update_ratio * config.total_batch),
        "n_steps": dqn.n_step_return,
        # Its target moves while it collects, so at most once between the updates of two rollouts.
        "target_update_interval": round(dqn.target_every / dqn.update_ratio),
        "exploration_fraction": dqn.epsilon_fraction,
        "exploration_initial_eps": dqn.epsilon_start,
        "exploration_final_eps": dqn.epsilon_end,
        "max_grad_norm": dqn.max_grad_norm,
        "policy_kwargs": {
            "net_arch": list(network.network_arch),
            "activation_fn": network.activation,
        },
    }


CASES: Cases = {
    f"{env} {network}": partial(_beside_sb3, env, steps, network)
    for env, steps, network in (
        ("CartPole-v1", 50_000, "128,128"),
        ("CartPole-v1", 50_000, "64,64"),
        ("Acrobot-v1", 50_000, "64,64"),
    )
}
