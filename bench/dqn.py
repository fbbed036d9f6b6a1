"""DQN beside Stable-Baselines3's: the same settings and seeds, one after the other, by turns.

Without double targets, which SB3 does not have, and with the learning rate constant, as it is
there; all else is Stoker's own, but for the network in one case, which is SB3's own. Both have one
thread.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.record import Cases, Row, named
from bench.seeds import SEEDS, difference, mean_of, train_all
from bench.turns import by_turns, middle_ratio
from stoker.config import resolve

_TIME_LIMIT_S = 1200.0
_ALIKE = {"double": False, "lr_schedule": "constant"}
_COMPARED = ("reward", "wall_s")


def _beside_sb3(env: str, steps: int, network: str) -> Iterator[Row]:
    alike = {**_ALIKE, "network_arch": network}
    config = resolve({"algo": "dqn", "env": env, "device": "cpu", **alike}, on_gpu=False)
    given = {
        **dataclasses.asdict(config.learning),
        "n_envs": config.env.n_envs,
        "network_arch": config.network.network_arch,
        "activation": config.network.activation,
    }
    found: dict[str, dict[str, list[float]]] = {
        side: {what: [] for what in _COMPARED} for side in ("ours", "peer")
    }

    def run(side: str, train: Any) -> float:
        ended = train(env, steps, SEEDS[len(found[side]["reward"])], given)
        for what in _COMPARED:
            found[side][what].append(round(ended[what], 2))
        return float(ended["wall_s"])

    sides = {"ours": partial(run, "ours", _ours), "peer": partial(run, "peer", _sb3)}
    took = by_turns(sides, len(SEEDS))
    rewards = {side: mean_of(values["reward"]) for side, values in found.items()}
    yield Row(
        "dqn",
        f"{env}, {steps:,} steps, network {network}",
        round(sum(took["ours"]) / len(SEEDS), 1),
        "s of training, smaller is better",
        round(sum(took["peer"]) / len(SEEDS), 1),
        named("stable-baselines3"),
        round(middle_ratio(took["peer"], took["ours"]), 2),
        details={
            "reward": rewards,
            "difference_and_interval": difference(found["ours"]["reward"], found["peer"]["reward"]),
            "seeds": found,
            "settings": {name: given[name] for name in sorted(given)},
        },
    )


def _ours(env: str, steps: int, seed: int, given: dict[str, Any]) -> dict[str, float]:
    words = f"--algo dqn --no-double --lr-schedule constant --env {env} --timesteps {steps}"
    network = ",".join(map(str, given["network_arch"]))
    flags = [*words.split(), "--seed", str(seed), "--device", "cpu", "--network-arch", network]
    (ended,) = train_all([flags], 1, _TIME_LIMIT_S)
    seconds = ended.outcome["env_steps"] / ended.outcome["sps"]  # without the evaluation
    return {"reward": ended.reward, "wall_s": seconds}


def _sb3(env: str, steps: int, seed: int, given: dict[str, Any]) -> dict[str, float]:
    words = [env, str(steps), str(seed), json.dumps(given)]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.peers.sb3_dqn", *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=True,
    )
    return dict(json.loads(ended.stdout))


CASES: Cases = {
    f"{env} {network}": partial(_beside_sb3, env, steps, network)
    for env, steps, network in (
        ("CartPole-v1", 50_000, "128,128"),
        ("CartPole-v1", 50_000, "64,64"),
        ("Acrobot-v1", 50_000, "64,64"),
    )
}
