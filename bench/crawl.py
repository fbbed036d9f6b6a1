"""Crawling: what an agent has to beat on sites that it has not seen, what one learns, and how fast.

Sites are served on this machine, over HTTP.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.overlap import train
from bench.record import Cases, Row
from stoker.envs.crawl.baselines import at_random, breadth_first, by_cues
from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.env import BlockingCrawlEnv
from stoker.envs.crawl.launch import serving
from stoker.envs.crawl.site import Site, SiteSettings
from stoker.envs.registry import EnvFactory
from stoker.train.agent import PPO

_BUDGET = 60
_TRAINED_ON, _UNSEEN = (0, 1000), (5000, 100)
"""The first site, and how many."""
_SEEDS = range(5)
_LATENCY_S = 0.05
_SERVER = "stoker.envs.crawl.serve"


def _baselines(budget: int) -> Iterator[Row]:
    """Targets found without learning; no network is needed for that."""
    found = _without_learning(budget)
    yield Row(
        "crawl",
        f"targets of 40 with {budget} requests, {_UNSEEN[1]} sites",
        round(found["reading words"], 1),
        "targets, found by reading words",
        round(found["breadth-first"], 1),
        "breadth-first",
        round(found["reading words"] / found["breadth-first"], 1),
        details={name: round(mean, 2) for name, mean in found.items()},
    )


def _without_learning(budget: int) -> dict[str, float]:
    first, count = _UNSEEN
    sites = [Site(SiteSettings(seed=number)) for number in range(first, first + count)]
    crawls = {"breadth-first": breadth_first, "random": at_random, "reading words": by_cues}
    return {
        name: statistics.mean(crawl(site, budget).targets for site in sites)
        for name, crawl in crawls.items()
    }


def _learning(steps: str) -> Iterator[Row]:
    """`stoker train`, then the most likely actions on sites that were not trained on."""
    others = _without_learning(_BUDGET)
    with serving(processes=2) as url, ThreadPoolExecutor(len(_SEEDS)) as workers:
        found = list(workers.map(partial(_targets_of_agent, url, steps), _SEEDS))
    yield Row(
        "crawl",
        f"learning for {steps} steps, {len(_SEEDS)} seeds",
        round(statistics.mean(found), 1),
        f"targets with {_BUDGET} requests on {_UNSEEN[1]} unseen sites",
        round(others["breadth-first"], 1),
        "breadth-first",
        round(statistics.mean(found) / others["breadth-first"], 2),
        details={
            "targets": [round(x, 2) for x in found],
            "others": {name: round(mean, 2) for name, mean in others.items()},
            "over_random": round(statistics.mean(found) / others["random"], 2),
        },
    )


def _targets_of_agent(url: str, steps: str, seed: int) -> float:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        words = f"train --env stoker/Crawl-v0 --timesteps {steps} --seed {seed} --device {device} "
        words += "--pool io --n-workers 2 --n-envs 64 --n-steps 64 --batch-size 512 --n-epochs 4 "
        words += "--network-arch 128,128 --lr 1e-3 --eval-episodes 0 --run-name crawl --json"
        given = ["--env-kwargs", json.dumps(_env(url, _TRAINED_ON)), "--runs-dir", folder]
        subprocess.run(
            [sys.executable, "-m", "stoker", *words.split(), *given],
            check=True,
            capture_output=True,
        )
        model = PPO.load(Path(folder, "crawl"), device="cpu")
    first, count = _UNSEEN
    return statistics.mean(_targets(model, url, site) for site in range(first, first + count))


def _targets(model: PPO, url: str, site: int) -> float:
    env = BlockingCrawlEnv(**_env(url, (site, 1)))
    obs, info = env.reset(seed=0)
    over = False
    while not over:
        action, _ = model.predict(obs, deterministic=True, action_mask=info["action_mask"])
        obs, _, over, _, info = env.step(int(action))
    env.close()
    return float(info["metrics"]["targets"])


def _env(url: str, sites: tuple[int, int]) -> dict[str, Any]:
    first, count = sites
    start = url + "s/{site}/"
    return {"start": start, "first_site": first, "sites": count, "budget": _BUDGET}


def _throughput(in_flight: int, sites: int, n_steps: int = 16) -> Iterator[Row]:
    """Training with a wide network, with the sites' server on the same cores."""
    cores = len(os.sched_getaffinity(0))
    conduct = Conduct(latency=_LATENCY_S)
    with serving(conduct=conduct, processes=max(1, cores // 4)) as url:
        factory = EnvFactory("stoker/Crawl-v0", _env(url, (0, sites)))
        before, began = _cpu(), time.perf_counter()
        speed = train(
            factory,
            iterations=10,
            collect="overlap",
            pool="io",
            n_envs=in_flight,
            n_steps=n_steps,
            batch_size=in_flight * n_steps // 4,
            n_epochs=4,
            network_arch=(1024, 1024, 512, 256),
        )
        spent, after = time.perf_counter() - began, _cpu()
    rate, ceiling = speed.steps / speed.wall_s, in_flight / _LATENCY_S
    yield Row(
        "crawl",
        f"training with {in_flight} in flight, {_LATENCY_S * 1e3:g} ms, sites: {sites}",
        round(rate),
        "steps/s",
        ceiling=round(ceiling),
        details={
            "share_of_ceiling": round(rate / ceiling, 3),
            "cores": cores,
            "cores_busy": {name: round((after[name] - before[name]) / spent, 2) for name in after},
        },
    )


def _cpu() -> dict[str, float]:
    """Seconds of the trainer, of its workers, living or not, and of the servers."""
    me, children = psutil.Process().cpu_times(), psutil.Process().children(recursive=True)
    spent = {child: sum(child.cpu_times()[:4]) for child in children}
    servers = sum(spent[child] for child in children if _SERVER in child.cmdline())
    ended = me.children_user + me.children_system
    return {
        "trainer": me.user + me.system,
        "workers": ended + sum(spent.values()) - servers,
        "servers": servers,
    }


CASES: Cases = {
    **{f"baselines, {n}": partial(_baselines, n) for n in (30, 60, 120)},
    "learning": partial(_learning, "500k"),
    **{
        f"throughput, {n}, sites {sites}": partial(_throughput, n, sites)
        for n in (1024, 2048)
        for sites in (1, 1000)
    },
}
