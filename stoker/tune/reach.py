"""How long training takes to reach a reward."""

from __future__ import annotations

import dataclasses
import math

from stoker.config.schema import Config
from stoker.train import loop
from stoker.train.build import build
from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest


def seconds_to(reward: float, config: Config, seed: int, most_s: float = math.inf) -> float | None:
    """Seconds until the mean reward of the last episodes is that high; None if it is not by then.

    Training ends with the timesteps of the config, or after `most_s`.
    """
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))
    parts = build(config)
    reached: list[float] = []

    def watch(progress: Progress) -> bool:
        found = progress.metrics.get("rollout/ep_rew_mean")
        if found is not None and found >= reward:
            reached.append(parts.clock.elapsed())
        return not reached and parts.clock.elapsed() < most_s

    try:
        session = Session(parts, None)
        session.start_clocks()
        loop.run(session, watch, StopRequest(None))
    finally:
        parts.close()
    return reached[0] if reached else None
