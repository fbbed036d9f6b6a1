"""Decisions in flight when a rollout is full belong to the next one: none is lost, none twice.

The pool is scripted, as in test_gather: which environment is late after which of its actions.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scripted import NEVER, TIME, Kind, RowByRowPolicy, ScriptedPool
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.collect import gather
from stoker.collect.gather import FreeGatherer, Gathered
from stoker.monitor.phases import PhaseClock
from stoker.storage.staged import StagedStorage
from stoker.types import PLAIN, Rollout

CPU = torch.device("cpu")
STEPS, ENVS, OLDEST = 4, 6, 3
TOTAL = STEPS * ENVS
KINDS = {0: Kind(3), 1: Kind(4, False), 2: Kind(1), 3: Kind(100), 4: Kind(5, False), 5: Kind(7)}


@pytest.fixture(autouse=True)
def _asks_for_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "time", TIME)


class Noting(ScriptedPool):
    """Notes under which version each action was decided."""

    def __init__(self, **given: Any) -> None:
        super().__init__(ENVS, kinds=KINDS, **given)
        self.version = 0
        self.versions: list[list[int]] = [[] for _ in range(ENVS)]

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        for env in env_ids.tolist():
            self.versions[env].append(self.version)
        super().send(actions, env_ids)


class Bench:
    """A gatherer that carries decisions over, between two storages with room for many."""

    def __init__(self, oldest: int = OLDEST, **pool: Any) -> None:
        self.pool = Noting(**pool)
        self.gatherer = FreeGatherer(
            self.pool, RowByRowPolicy(), PhaseClock(), 0, CPU, oldest=oldest
        )
        self._storages = [StagedStorage(self.pool.spec, STEPS, ENVS, CPU, 3 * STEPS) for _ in "ab"]
        self.version = -1

    def fill(self) -> tuple[Rollout, Gathered]:
        self.version += 1
        self.pool.version = self.version
        storage = self._storages[self.version % 2]
        self.gatherer.begin(storage, self.version)
        gathered = self.gatherer.complete(storage)
        rollout = storage.judged_by(self.gatherer.policy, self.version)
        return pytree.tree_map_only(Tensor, torch.clone, rollout), gathered


def delays(seed: int, most: int = 7) -> dict[tuple[int, int], int]:
    drawn = np.random.default_rng(seed).integers(0, most, (ENVS, 200))
    return {(env, k): int(drawn[env, k]) for env in range(ENVS) for k in range(200)}


def column(rollouts: list[Rollout], env: int, name: str) -> list[Any]:
    """A field of one environment's transitions, in the order of time."""
    rows = [getattr(r, name)[r.valid[:, env], env].flatten().tolist() for r in rollouts]
    return [value for some in rows for value in some]


@pytest.mark.parametrize("seed", range(20))
def test_every_transition_is_seen_once_and_in_order(seed: int) -> None:
    bench = Bench(delays=delays(seed), oldest=100)
    filled = [bench.fill() for _ in range(6)]
    rollouts = [rollout for rollout, _ in filled]
    assert [gathered.steps for _, gathered in filled] == [TOTAL] * 6
    assert [gathered.late for _, gathered in filled] == [0] * 6
    for env in range(ENVS):
        actions = column(rollouts, env, "action")
        assert actions == bench.pool.taken[env][: len(actions)]
        assert len(bench.pool.taken[env]) - len(actions) <= 1, "what is in flight"
        versions = column(rollouts, env, "policy_version")
        assert versions == bench.pool.versions[env][: len(versions)]
        length = KINDS[env].length
        paid = [k % length + 1 + 0.25 * action for k, action in enumerate(actions)]
        assert column(rollouts, env, "reward") == paid


@pytest.mark.parametrize("seed", range(5))
def test_a_row_shows_what_its_decision_was_taken_by(seed: int) -> None:
    """An environment's observation says which of its steps it is, whichever rollout it is in."""
    bench = Bench(delays=delays(seed), oldest=100)
    seen: list[list[float]] = [[] for _ in range(ENVS)]
    for _ in range(6):
        rollout, _ = bench.fill()
        for env in range(ENVS):
            seen[env] += rollout.obs[PLAIN][rollout.valid[:, env], env, 0].tolist()
    for env in range(ENVS):
        length = KINDS[env].length
        where = [1000 * env + 100 * (k // length) + k % length for k in range(len(seen[env]))]
        assert seen[env] == where


def test_nobody_waits_for_one_that_is_late() -> None:
    late, prompt = Bench(delays={(3, 2): NEVER}), Bench()
    for _ in range(3):
        late.fill()
        prompt.fill()
    asks = len(late.pool.patiences)
    assert asks <= len(prompt.pool.patiences) * ENVS / (ENVS - 1) + 3


def test_what_is_older_than_it_may_be_is_dropped_and_counted() -> None:
    bench = Bench(delays={(3, 2): NEVER})
    dropped = [bench.fill()[1].late for _ in range(OLDEST + 3)]
    assert dropped == [0] * OLDEST + [1, 0, 0]
    bench.pool.release(3)
    rollout, gathered = bench.fill()
    assert gathered.late == 0
    assert gathered.steps == TOTAL
    assert rollout.valid[:, 3].any(), "it goes on with what it sees now"
    assert (rollout.policy_version[:, 3][rollout.valid[:, 3]] == bench.version).all()


def test_the_advantage_before_a_decision_in_flight_bootstraps_from_what_it_saw() -> None:
    bench = Bench(delays={(3, 2): NEVER})
    rollout, _ = bench.fill()
    assert rollout.truncated[2, 3]
    assert not rollout.valid[2, 3]
    assert rollout.valid[:2, 3].all()
    assert rollout.obs[PLAIN][2, 3, 0] == 3002, "what it saw when it decided"


def test_rows_of_older_weights_are_judged_anew() -> None:
    """Their log-probability under the policy that learns is not the one that was kept."""

    class Judge(RowByRowPolicy):
        def appraise(self, obs: Any, mask: Any, action: Tensor) -> tuple[Tensor, Tensor]:
            value, log_prob = super().appraise(obs, mask, action)
            return value, torch.full_like(log_prob, -7.0)

    bench = Bench(delays=delays(0))
    bench.gatherer.policy = Judge()
    first, _ = bench.fill()
    second, _ = bench.fill()
    assert not (first.log_prob == -7.0).any(), "all by the very weights that learn"
    assert (second.policy_version == 0).any()
    assert (second.log_prob == -7.0).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_state_brings_everyone_back(seed: int) -> None:
    bench = Bench(delays=delays(seed))
    for _ in range(3):
        bench.fill()
    state = bench.gatherer.state()
    other = Bench()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that somebody could not be brought back
        other.gatherer.restore(state)
    rollout, gathered = other.fill()
    assert gathered.steps == TOTAL
    for env in range(ENVS):
        made = len(column([rollout], env, "action"))
        assert made, env
