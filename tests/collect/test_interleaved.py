"""Collecting by turns with something else: when that has its turn, and what is collected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from counting import SquaringPolicy, collected, counting_pool, in_step
from torch import nn

from stoker.collect.interleaved import InterleavedCollector, InterleavedGatherer, Meanwhile
from stoker.collect.weights import Weights
from stoker.errors import EnvError
from stoker.monitor.phases import PhaseClock
from stoker.pools.inline import InlinePool
from stoker.storage.staged import StagedStorage
from stoker.types import PLAIN

STEPS = 5
KINDS = ((3, "terminated"), (4, "truncated"))


class Noting(InlinePool):
    """Whoever is told to step is written down."""

    told: list[Any]

    def send(self, *given: Any) -> None:
        self.told.append("sent")
        super().send(*given)

    def recv(self, *given: Any, **named: Any) -> Any:
        self.told.append("heard")
        return super().recv(*given, **named)


def interleaved(
    pool: InlinePool, meanwhile: Meanwhile, weights: Weights | None = None
) -> InterleavedCollector:
    device, weights = torch.device("cpu"), weights or Weights(nn.Linear(1, 1), nn.Linear(1, 1))
    given = (pool, SquaringPolicy(), PhaseClock(), 0, device)
    storage = StagedStorage(pool.spec, STEPS, pool.n_envs, device)
    gatherer = InterleavedGatherer(*given, weights=weights, meanwhile=meanwhile)
    return InterleavedCollector(gatherer, storage)


def noting_pool(told: list[Any]) -> InlinePool:
    pool = counting_pool(*KINDS)
    pool.__class__ = Noting
    assert isinstance(pool, Noting)
    pool.told = told
    pool.groups = (slice(0, 1), slice(1, 2))  # which alternate where nothing else does
    return pool


def test_it_has_its_turn_while_environments_step_and_knows_how_many_are_left() -> None:
    told: list[Any] = []
    with noting_pool(told) as pool:
        collector = interleaved(pool, told.append)
        collector.collect(last=True)
        assert collector.on_last
        clock = collector.gatherer.clock
        assert isinstance(clock, PhaseClock)
        assert clock.total["update"] > 0
    turns = [["sent", left, "heard"] for left in range(STEPS, 0, -1)]
    assert told == [word for turn in turns for word in turn]


def test_what_is_collected_is_what_would_be_in_step() -> None:
    with counting_pool(*KINDS) as pool, noting_pool([]) as other:
        plain, by_turns = in_step(pool, SquaringPolicy(), STEPS), interleaved(other, [].append)
        for _ in range(3):
            expected, found = collected(plain), collected(by_turns)
            assert torch.equal(found.obs[PLAIN], expected.obs[PLAIN])
            for name in ("action", "reward", "terminated", "truncated", "final_value", "value"):
                assert torch.equal(getattr(found, name), getattr(expected, name)), name
            plain.publish()
            by_turns.publish()
        assert by_turns.version == 3


def test_a_rollout_is_collected_under_the_weights_that_it_began_with() -> None:
    """Though others come of what is done meanwhile: those are the next one's."""
    learning, acting = nn.Linear(1, 1), nn.Linear(1, 1)
    acted = list[float]()

    def learn(turns: int) -> None:
        acted.append(acting.bias.item())
        learning.bias.data += 1.0

    learning.bias.data.fill_(0.0)
    with noting_pool([]) as pool:
        collector = interleaved(pool, learn, Weights(learning, acting))
        for _ in range(3):
            collector.collect()
            collector.publish()
    assert acted == [0.0] * STEPS + [1.0 * STEPS] * STEPS + [2.0 * STEPS] * STEPS


def test_what_is_left_is_done_when_an_environment_fails() -> None:
    told: list[Any] = []
    with noting_pool(told) as pool:
        collector = interleaved(pool, told.append)

        def fail(*given: Any, **named: Any) -> Any:
            raise EnvError("it broke")

        pool.recv = fail  # type: ignore[method-assign]
        with pytest.raises(EnvError, match="it broke"):
            collector.collect()
    assert told == ["sent", STEPS, 1]
