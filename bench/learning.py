"""Does it learn, with the defaults, whatever the seed? The evaluated reward of each seed.

No default was chosen by looking at these seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.record import Cases, Row
from bench.seeds import train_all

FIRST_SEED = 20
_TIME_LIMIT_S = 1800.0
_MOUNTAIN = (
    "--algo dqn --learning-rate 4e-3 --batch-size 128 --gamma 0.98 --target-every 300 "
    "--epsilon-end 0.07"
)


def _learning(env: str, steps: str, seeds: int, solved: float, more: str = "") -> Iterator[Row]:
    """`stoker train --env ENV --timesteps N --seed S --device cpu`, two at a time."""
    which = range(FIRST_SEED, FIRST_SEED + seeds)
    flags = ["--env", env, "--timesteps", steps, "--device", "cpu", *more.split()]
    ended = train_all([[*flags, "--seed", str(seed)] for seed in which], 2, _TIME_LIMIT_S)
    evaluated = [run.reward for run in ended]
    reached = sum(reward >= solved for reward in evaluated)
    yield Row(
        "learning",
        " ".join([f"{env}, {steps} steps", *([f"({more})"] if more else [])]),
        reached,
        f"seeds of {seeds} that reach {solved:g}",
        ceiling=seeds,
        details={
            "seeds": list(which),
            "eval_reward": [round(reward, 1) for reward in evaluated],
            "training_reward": [
                round(run.outcome["metrics"]["rollout/ep_rew_mean"], 1) for run in ended
            ],
            "wall_s": [round(run.wall_s, 1) for run in ended],
        },
    )


CASES: Cases = {
    # environment, steps, seeds, the reward that counts as solved, and what is no default
    " ".join([case[0], *case[4:]]): partial(_learning, *case)
    for case in (
        ("CartPole-v1", "100k", 10, 475.0),
        ("Acrobot-v1", "100k", 3, -100.0),
        ("Pendulum-v1", "300k", 5, -250.0),
        ("CartPole-v1", "100k", 10, 475.0, "--algo dqn"),
        ("Acrobot-v1", "100k", 3, -100.0, "--algo dqn"),
        ("MountainCar-v0", "120k", 4, -110.0, _MOUNTAIN),
    )
}
