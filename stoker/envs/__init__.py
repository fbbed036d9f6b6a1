"""Environments: what ships, and how a name becomes one. Torch is in those made of tensors alone."""

from __future__ import annotations

import gymnasium

SHIPPED = {
    "stoker/Crawl-v0": "stoker.envs.crawl.env:CrawlEnv",
    "stoker/CrawlBlocking-v0": "stoker.envs.crawl.env:BlockingCrawlEnv",
    "stoker/Mission-v0": "stoker.envs.mission.env:MissionEnv",
}
"""Where the environments of our own ids are; nothing is imported until one is made."""

TENSORS = {
    "tensor/Acrobot-v1": "stoker.envs.tensor.acrobot:Acrobot",
    "tensor/CartPole-v1": "stoker.envs.tensor.cart_pole:CartPole",
    "tensor/Mission-v0": "stoker.envs.mission.tensor.env:TensorMission",
    "tensor/MountainCar-v0": "stoker.envs.tensor.mountain_car:MountainCar",
    "tensor/MountainCarContinuous-v0": "stoker.envs.tensor.mountain_car:MountainCarContinuous",
    "tensor/Pendulum-v1": "stoker.envs.tensor.pendulum:Pendulum",
    "tensor/Trading-v0": "stoker.envs.trading.env:Trading",
}
"""Those that are tensor programs (`types.TensorEnv`), which Gymnasium does not know."""


def register_shipped() -> None:
    """Make our ids known to Gymnasium, unless somebody has done so."""
    for name, home in SHIPPED.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=home)
