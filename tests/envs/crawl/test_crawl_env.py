"""stoker/Crawl-v0 against a real server on this machine."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import stoker.envs
from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.env import BlockingCrawlEnv, CrawlEnv
from stoker.envs.crawl.explore import STOP
from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.launch import serving
from stoker.errors import ConfigError, EpisodeCutError
from stoker.pools.awaited import as_blocking
from stoker.pools.choose import choose as choose_pool
from stoker.pools.choose import probe

QUICK = {"connect_s": 1.0, "read_s": 1.0, "total_s": 3.0, "breaker_failures": 1000}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as base:
        yield base


def choose(mask: np.ndarray, rng: np.random.Generator) -> int:
    allowed = np.flatnonzero(mask[:STOP])
    return int(rng.choice(allowed)) if allowed.size else STOP


async def awaited(start: str, steps: int) -> list[Any]:
    env, rng = CrawlEnv(start=start, sites=5, budget=12), np.random.default_rng(0)
    told: list[Any] = [await env.reset(seed=3)]
    for _ in range(steps):
        told.append(await env.step(choose(told[-1][-1]["action_mask"], rng)))
        if told[-1][2]:
            told.append(await env.reset())
    await env.close()
    return told


def blocking(start: str, steps: int) -> list[Any]:
    env, rng = BlockingCrawlEnv(start=start, sites=5, budget=12), np.random.default_rng(0)
    told: list[Any] = [env.reset(seed=3)]
    for _ in range(steps):
        told.append(env.step(choose(told[-1][-1]["action_mask"], rng)))
        if told[-1][2]:
            told.append(env.reset())
    env.close()
    return told


def test_awaited_or_blocking_it_behaves_alike(url: str) -> None:
    start = url + "s/{site}/"
    ours, theirs = asyncio.run(awaited(start, 60)), blocking(start, 60)
    assert len(ours) == len(theirs)
    assert any(len(told) == 2 for told in ours[1:]), "an episode ended"
    for one, other in zip(ours, theirs, strict=True):
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1:-1] == other[1:-1]
        assert one[-1]["metrics"] == other[-1]["metrics"]
        assert one[-1]["action_mask"].tolist() == other[-1]["action_mask"].tolist()


def test_gymnasium_finds_nothing_wrong_with_it(url: str) -> None:
    stoker.envs.register_shipped()
    env = gymnasium.make("stoker/CrawlBlocking-v0", start=url + "s/{site}/", sites=3, budget=5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*observation space.*infinity.*")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_episodes_are_on_different_sites_that_follow_from_the_seed(url: str) -> None:
    env = BlockingCrawlEnv(start=url + "s/{site}/", sites=1000)
    first = [env.reset(seed=seed)[0].tobytes() for seed in range(5)]
    assert len(set(first)) > 1
    assert first == [env.reset(seed=seed)[0].tobytes() for seed in range(5)]
    env.close()


def test_targets_are_found_and_paid_for(url: str) -> None:
    env, rng = BlockingCrawlEnv(start=url + "s/{site}/", sites=20), np.random.default_rng(1)
    found = paid = 0.0
    for seed in range(4):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            _, reward, over, _, info = env.step(choose(info["action_mask"], rng))
            paid += reward
        found += info["metrics"]["targets"]
        assert info["metrics"]["requests"] <= 60
    assert found > 0
    assert paid == pytest.approx(found, abs=4 * 60 * 0.02)
    env.close()


def test_an_episode_begins_where_its_start_redirects_to(url: str) -> None:
    """`/s/7` leads to `/s/7/`, from where relative links are to be read."""
    seen = []
    for start in ("s/{site}", "s/{site}/"):
        env = BlockingCrawlEnv(start=url + start, sites=1, first_site=7)
        obs, info = env.reset(seed=0)
        seen.append((obs.tobytes(), info["action_mask"].tolist()))
        env.close()
    assert seen[0] == seen[1]


def test_a_step_whose_page_does_not_come_is_cut_off() -> None:
    with serving() as base:
        env = BlockingCrawlEnv(start=base + "s/{site}/", limits=QUICK | {"retries": 0})
        env.reset(seed=0)
    with pytest.raises(EpisodeCutError, match=r"was not fetched \((connection|timeout)\)"):
        env.step(0)
    env.close()


def test_a_reset_waits_for_a_server_that_is_away() -> None:
    with serving() as base:
        port = int(base.rsplit(":", 1)[1].rstrip("/"))
    env = BlockingCrawlEnv(start=base + "s/{site}/", limits=QUICK, patience_s=60.0)
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(env.reset(seed=0)))
    thread.start()
    time.sleep(1.0)
    assert not came
    with serving(port=port):
        thread.join(60)
        assert came
    env.close()


def test_a_probe_sees_that_it_waits() -> None:
    with serving(conduct=Conduct(latency=0.05)) as base:
        for kind, waits in ((CrawlEnv, "as coroutines"), (BlockingCrawlEnv, "in threads")):
            env = as_blocking(kind(start=base + "s/{site}/"))
            choice = choose_pool(probe("crawl", env), n_envs=8, cores=2)
            assert (choice.pool, choice.waits) == ("io", waits)
            env.close()


@pytest.mark.parametrize(
    ("start", "kind"),
    [("http://example.invalid/", "refused-host"), ("file:///etc/passwd", "scheme")],
)
def test_what_is_not_allowed_is_not_tried_again(start: str, kind: str) -> None:
    env = BlockingCrawlEnv(start=start)
    with pytest.raises(FetchError) as caught:
        env.reset(seed=0)
    assert caught.value.kind == kind
    env.close()


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="budget is 0"):
        CrawlEnv(budget=0)
    with pytest.raises(ConfigError, match="read_s is -1"):
        CrawlEnv(limits={"read_s": -1})
