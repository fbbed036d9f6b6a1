"""Environments: what ships, and how a name becomes one. No torch in this room."""

from __future__ import annotations

import gymnasium

SHIPPED = {
    "stoker/Crawl-v0": "stoker.envs.crawl.env:CrawlEnv",
    "stoker/CrawlBlocking-v0": "stoker.envs.crawl.env:BlockingCrawlEnv",
    "stoker/Mission-v0": "stoker.envs.mission.env:MissionEnv",
}
"""Where the environments of our own ids are; nothing is imported until one is made."""


def register_shipped() -> None:
    """Make our ids known to Gymnasium, unless somebody has done so."""
    for name, home in SHIPPED.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=home)
