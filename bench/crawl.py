"""Crawling: what an agent has to beat on sites that it has not seen."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from bench.record import Cases, Row
from stoker.envs.crawl.baselines import at_random, breadth_first, by_cues
from stoker.envs.crawl.site import Site, SiteSettings

_FIRST_SITE, _SITES = 5000, 100


def _baselines(budget: int) -> Iterator[Row]:
    """Targets found without learning; no network is needed for that."""
    numbers = range(_FIRST_SITE, _FIRST_SITE + _SITES)
    sites = [Site(SiteSettings(seed=number)) for number in numbers]
    found = {
        name: statistics.mean(crawl(site, budget).targets for site in sites)
        for name, crawl in (
            ("breadth-first", breadth_first),
            ("random", at_random),
            ("reading words", by_cues),
        )
    }
    yield Row(
        "crawl",
        f"targets of 40 with {budget} requests, {_SITES} sites",
        round(found["reading words"], 1),
        "targets, found by reading words",
        round(found["breadth-first"], 1),
        "breadth-first",
        round(found["reading words"] / found["breadth-first"], 1),
        details={name: round(mean, 2) for name, mean in found.items()},
    )


CASES: Cases = {f"baselines, {n}": partial(_baselines, n) for n in (30, 60, 120)}
