"""stoker/Crawl-v0: explore a web site over HTTP, to find targets with few requests.

`CrawlEnv` is to be awaited, so that thousands can be in flight; `BlockingCrawlEnv` is the same for
everyone else. The rules are in `explore`, what may be asked for is in `limits`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stoker.envs.crawl.explore import ACTIONS, OBSERVED, Exploration
from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.fetch import Fetcher
from stoker.envs.crawl.limits import Limits
from stoker.errors import ConfigError, EnvError, EpisodeCutError

_HOPELESS = ("url", "scheme", "refused-host", "private-address", "tls")
"""What trying again does not mend."""
_PAUSE_S = 0.5


class CrawlEnv(gymnasium.Env[Any, Any]):
    """An agent on a site. `step` and `reset` are coroutines.

    `start` is the address that episodes begin at; `{site}` in it is replaced by a number from
    `first_site` on, drawn among `sites` of them. `target` is a CSS selector. `limits` are those of
    `Limits`, by name; only hosts in `allowed_hosts` are ever asked, by default this machine. For
    `patience_s` a reset waits for a server that does not answer.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        start: str = "http://127.0.0.1:8000/s/{site}/",
        sites: int = 1000,
        first_site: int = 0,
        budget: int = 60,
        target: str = "article.target",
        limits: dict[str, Any] | None = None,
        patience_s: float = 45.0,
    ) -> None:
        if budget < 1 or sites < 1:
            raise ConfigError(f"budget is {budget} and sites is {sites}; both must be 1 or more.")
        self._start, self._sites, self._first_site = start, sites, first_site
        self._budget, self._target, self._patience_s = budget, target, patience_s
        given = {"max_connections": 1024, "retries": 1} | (limits or {})
        if "allowed_hosts" in given:
            given["allowed_hosts"] = tuple(given["allowed_hosts"])
        self._limits = Limits(**given)
        self._fetcher: Fetcher | None = None
        self._episode: Exploration | None = None
        self.observation_space = spaces.Box(0.0, np.inf, (OBSERVED,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        site = self._first_site + int(self.np_random.integers(self._sites))
        episode = Exploration(self._start.format(site=site), self._budget, self._target)
        episode.begin(*await self._first_page(episode.start))
        self._episode = episode
        return episode.observe(), self._info(episode)

    async def step(self, action: int) -> Any:  # type: ignore[override]
        episode = self._episode
        if episode is None:
            raise EnvError("step() was called before reset(). Reset the environment first.")
        html, url = None, episode.ask(int(action))
        if url is not None:
            html, url = await self._fetch(url)
        reward, is_over = episode.learn(int(action), html, url)
        return episode.observe(), reward, is_over, False, self._info(episode)

    async def close(self) -> None:  # type: ignore[override]
        if self._fetcher is not None:
            await self._fetcher.close()
            self._fetcher = None

    async def _fetch(self, url: str) -> tuple[str | None, str]:
        """What lies at `url`, and where it was found; None if there is no page."""
        try:
            page = await self._client().get(url)
        except FetchError as error:
            raise EpisodeCutError(str(error)) from error
        is_page = page.status == 200 and "html" in page.content_type
        return page.text if is_page else None, page.url

    async def _first_page(self, url: str) -> tuple[str, str]:
        """What lies there, and where it was found."""
        clock = asyncio.get_running_loop().time
        ends = clock() + self._patience_s
        while True:
            try:
                page = await self._client().get(url)
                break
            except FetchError as error:
                if error.kind in _HOPELESS or clock() >= ends:
                    raise
            await asyncio.sleep(_PAUSE_S)
        if page.status != 200:
            raise EnvError(
                f"Episodes begin at {url}, and it answered with status {page.status}; expected a "
                "page. Give another start, or serve a site: stoker site serve."
            )
        return page.text, page.url

    def _client(self) -> Fetcher:
        """Shared with all others on this event loop that have the same limits."""
        if self._fetcher is None:
            self._fetcher = Fetcher.shared(self._limits)
        return self._fetcher

    def _info(self, episode: Exploration) -> dict[str, Any]:
        return {"action_mask": episode.mask(), "metrics": episode.metrics()}


class BlockingCrawlEnv(CrawlEnv):
    """The same environment with ordinary methods, on an event loop of its own."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._loop = asyncio.new_event_loop()  # without asyncio.Runner: that takes ms a call

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return self._loop.run_until_complete(super().reset(seed=seed, options=options))

    def step(self, action: int) -> Any:
        return self._loop.run_until_complete(super().step(action))

    def close(self) -> None:  # type: ignore[override]
        if not self._loop.is_closed():
            self._loop.run_until_complete(super().close())
            self._loop.close()
