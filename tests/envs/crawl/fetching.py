"""What the tests of fetching share: patient limits, and a fetch that must fail or succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from servers import Handler, Server, saying

from stoker.envs.crawl.failure import FetchError
from stoker.envs.crawl.fetch import Fetcher
from stoker.envs.crawl.limits import Limits

Run = Callable[[Any], None]

PATIENT = Limits(
    connect_s=10,
    read_s=10,
    total_s=20,
    max_body_bytes=100_000,
    max_decompressed_bytes=200_000,
    retries=0,
    retry_base_s=0.001,
    breaker_failures=100,
)
"""Limits that no healthy answer runs into, however busy the machine is."""


async def refused(fetcher: Fetcher, url: str, kind: str) -> FetchError:
    """The error that a fetch ends with; any kind but `kind` is wrong."""
    with pytest.raises(FetchError) as caught:
        await fetcher.get(url)
    assert caught.value.kind == kind, str(caught.value)
    return caught.value


def fails(run: Run, handler: Handler, kind: str, limits: Limits = PATIENT) -> FetchError:
    """What a single fetch from such a server ends with."""
    errors = []

    async def test() -> None:
        async with Server(handler) as server, Fetcher(limits) as fetcher:
            errors.append(await refused(fetcher, server.url(), kind))
            assert fetcher.counts.failures == {kind: 1}
            assert (fetcher.counts.gets, fetcher.counts.pages) == (1, 0)
            for _ in range(100):  # the last may have been sent and not read when time was up
                if len(server.paths) < fetcher.counts.requests:
                    await asyncio.sleep(0.01)
            assert fetcher.counts.requests == len(server.paths)

    run(test())
    return errors[0]


def reads(run: Run, answer: bytes | Handler, text: str, limits: Limits = PATIENT) -> None:
    async def test() -> None:
        handler = saying(answer) if isinstance(answer, bytes) else answer
        async with Server(handler) as server, Fetcher(limits) as fetcher:
            assert (await fetcher.get(server.url())).text == text

    run(test())
