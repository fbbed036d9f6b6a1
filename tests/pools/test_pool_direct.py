"""What adapters need beyond stepping: resets with seeds of the caller's, infos, calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from awaitable import AsCoroutines
from pool_envs import Counter, act, spec_of

from stoker.errors import ConfigError, EnvError
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool

POOLS = pytest.mark.parametrize("kind", ["inline", "no", "in threads", "as coroutines"])


class Talker(Counter):
    """Says in its infos which seeds and options it was reset with."""

    label = "none"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.options = options
        return super().reset(seed=seed, options=options)

    def info(self) -> dict[str, Any]:
        return {"seeds": list(self.seeds), "t": self.t, "options": self.options}

    def add(self, left: int, right: int) -> int:
        if left < 0:
            raise ValueError("no negative numbers")
        return left + right

    def lock(self) -> Any:
        return threading.Lock()


@contextmanager
def pool_of(kind: str, keep_infos: bool = True) -> Iterator[Any]:
    make: Any = partial(Talker, length=2)
    if kind == "as coroutines":
        make = partial(AsCoroutines, make)
    with (
        InlinePool(make, spec_of(Counter()), 4, None, keep_infos)
        if kind == "inline"
        else ProcessPool(make, spec_of(Counter()), 4, 2, None, keep_infos, waits=kind)
    ) as pool:
        yield pool


@POOLS
def test_a_restart_has_the_seeds_of_the_caller_and_later_episodes_none(kind: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=0)
        pool.step(act(0, 0, 0, 0))
        batch = pool.restart(np.array([1, 3]), [77, None], {"level": 2})
        assert batch.env_ids.tolist() == [1, 3]
        assert batch.obs["obs"].tolist() == [[1, 0], [1, 0]]
        assert batch.reward.tolist() == [0, 0]
        assert [infos.info["seeds"][-1] for infos in pool.last_infos] == [77, None]
        assert [infos.info["options"] for infos in pool.last_infos] == [{"level": 2}] * 2
        batch = pool.step(act(0, 0, 0, 0))
        assert batch.obs["obs"].tolist() == [[1, 0], [1, 1], [1, 0], [1, 1]]
        pool.step(act(0, 0, 0, 0))
        seeds = [infos.info["seeds"][-1] for infos in pool.last_infos]
        assert [seed is None for seed in seeds] == [False, True, False, True]


@POOLS
def test_infos_of_the_step_and_of_the_episode_that_it_ended(kind: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=0)
        assert [infos.info["t"] for infos in pool.last_infos] == [0] * 4
        pool.step(act(0, 0, 0, 0))
        assert [infos.info["t"] for infos in pool.last_infos] == [1] * 4
        assert [infos.final for infos in pool.last_infos] == [None] * 4
        pool.step(act(0, 0, 0, 0))
        assert [infos.info["t"] for infos in pool.last_infos] == [0] * 4
        assert [infos.final["t"] for infos in pool.last_infos] == [2] * 4
        pool.step(act(0, 0, 0, 0))
        assert [infos.final for infos in pool.last_infos] == [None] * 4
        pool.send(act(0), np.array([2]))
        pool.recv(1)
        assert [infos.final["t"] for infos in pool.last_infos] == [2]


@POOLS
def test_infos_are_not_kept_unless_asked_for(kind: str) -> None:
    with pool_of(kind, keep_infos=False) as pool:
        pool.reset(seed=0)
        pool.step(act(0, 0, 0, 0))
        assert pool.last_infos == []


@POOLS
def test_methods_and_attributes(kind: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=0)
        assert pool.call("add", 2, 3) == [5] * 4
        assert pool.call("length") == [2] * 4
        pool.set_attr("label", ["a", "b", "c", "d"])
        assert pool.call("label") == ["a", "b", "c", "d"]
        assert pool.step(act(0, 0, 0, 0)).reward.tolist() == [1] * 4


@POOLS
def test_a_call_that_raises_leaves_the_pool_in_order(kind: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=0)
        with pytest.raises(EnvError, match=r"Environment \d raised ValueError in add\(\)"):
            pool.call("add", -1, 3)
        assert pool.call("add", 2, 3) == [5] * 4
        assert pool.step(act(0, 0, 0, 0)).reward.tolist() == [1] * 4


def test_a_result_that_cannot_travel() -> None:
    with pool_of("no") as pool:
        pool.reset(seed=0)
        with pytest.raises(EnvError, match="The result of call cannot be sent: cannot pickle"):
            pool.call("lock")
        assert pool.call("add", 2, 3) == [5] * 4


def test_a_restart_amid_a_step_is_refused() -> None:
    with pool_of("no") as pool:
        pool.reset(seed=0)
        pool.send(act(0), np.array([1]))
        with pytest.raises(ConfigError, match=r"Environments \[1\] have not answered"):
            pool.restart(np.array([0, 1]), [None, None])
