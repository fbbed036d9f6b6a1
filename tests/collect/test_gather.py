"""Filling a rollout: groups make no difference, and nobody waits for an environment that is late.

The pool is scripted: it says which environment is late after which of its actions, and how often
it is asked for in vain. So every row is known beforehand.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scripted import Kind, RowByRowPolicy, ScriptedPool
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.algos import ppo
from stoker.collect.gather import Gathered, Gatherer, GatheringInterruptedError
from stoker.config.schema import PPOSettings
from stoker.monitor.phases import PhaseClock
from stoker.storage.rollout import RolloutStorage
from stoker.types import PLAIN, Rollout

CPU = torch.device("cpu")
STEPS, ENVS = 8, 6
KINDS = {0: Kind(3), 1: Kind(4, False), 2: Kind(1), 3: Kind(100), 4: Kind(5, False), 5: Kind(7)}
SETTINGS = PPOSettings(n_steps=STEPS, batch_size=STEPS, n_epochs=1, gamma=0.9, gae_lambda=0.8)
LATE = 3
"""The environment that is late in these tests; its episodes do not end."""


class Filled(NamedTuple):
    """A rollout of one's own, and what came of filling it."""

    rollout: Rollout
    gathered: Gathered

    @property
    def advantage(self) -> Tensor:
        rows, _ = ppo.prepare(self.rollout, self.rollout.reward, SETTINGS)
        return rows.advantage.reshape(STEPS, -1)


class Bench:
    """A gatherer on a scripted pool."""

    def __init__(self, waits: bool = False, n_envs: int = ENVS, **pool: Any) -> None:
        self.pool = ScriptedPool(n_envs, **{"kinds": KINDS, **pool})
        self.gatherer = Gatherer(self.pool, RowByRowPolicy(), PhaseClock(), 0, CPU, waits=waits)
        self._storage = RolloutStorage(self.pool.spec, STEPS, n_envs, CPU)

    def fill(self, version: int = 0) -> Filled:
        gathered = self.gatherer.fill(self._storage, version)
        rollout = self._storage.judged_by(self.gatherer.policy, version)
        return Filled(pytree.tree_map_only(Tensor, torch.clone, rollout), gathered)


def same(first: Rollout, second: Rollout) -> bool:
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if a is not None)


def others(field: Tensor) -> Tensor:
    """The columns of everyone but the late one."""
    return field[:, [n for n in range(field.shape[1]) if n != LATE]]


def check_the_others(found: Filled, expected: Filled) -> None:
    """Everyone else's rows and advantages are as if nobody had been late."""
    names = "action action_mask behaviour_log_prob value reward terminated truncated final_value"
    for name in (*names.split(), "valid"):
        mine, theirs = (others(getattr(filled.rollout, name)) for filled in (found, expected))
        assert torch.equal(mine, theirs), name
    assert torch.equal(others(found.rollout.obs[PLAIN]), others(expected.rollout.obs[PLAIN]))
    assert torch.equal(others(found.advantage), others(expected.advantage))


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_groups_give_the_bits_that_one_group_gives(groups: int) -> None:
    delays = {(env, k): (env + k) % 3 for env in range(ENVS) for k in range(3 * STEPS)}
    one, several = Bench(waits=True), Bench(waits=True, groups=groups, delays=delays)
    for version in range(3):
        mine, theirs = one.fill(version), several.fill(version)
        assert same(mine.rollout, theirs.rollout)
        assert mine.gathered.steps == theirs.gathered.steps == STEPS * ENVS
        assert mine.gathered.late == theirs.gathered.late == 0
        assert mine.gathered.metrics.means() == theirs.gathered.metrics.means()
    assert one.gatherer.episodes.metrics() == several.gatherer.episodes.metrics()
    for name, value in one.gatherer.state().items():
        np.testing.assert_array_equal(several.gatherer.state()[name], value, name)


def test_groups_alternate_in_a_fixed_order() -> None:
    bench = Bench(waits=True, groups=2, delays={(0, 1): 5})
    bench.fill()
    assert bench.pool.sends == [(0, 1, 2), (3, 4, 5)] * STEPS


@pytest.mark.parametrize("groups", [1, 2])
def test_without_a_late_environment_not_waiting_gives_the_same_bits(groups: int) -> None:
    patient, hasty = Bench(waits=True), Bench(groups=groups)
    for version in range(3):
        assert same(patient.fill(version).rollout, hasty.fill(version).rollout)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_late_environment_leaves_gaps_and_its_outcome_lands_where_it_decided(groups: int) -> None:
    """Asked for in vain at steps 2, 3 and 4, it comes back at step 5: three rows are gaps."""
    prompt, bench = Bench(), Bench(groups=groups, delays={(LATE, 2): 3})
    expected, found = prompt.fill(), bench.fill()
    rollout = found.rollout
    assert rollout.valid[:, LATE].tolist() == [True, True, True, False, False, False, True, True]
    assert not rollout.truncated[:, LATE].any()  # its episode goes on
    assert found.gathered == Gathered(STEPS * ENVS - 3, 0, found.gathered.metrics)
    # Row 2 holds what came of row 2, though that was known only at step 5.
    here = [0, 1, 2, 6, 7]
    steps = rollout.obs[PLAIN][here, LATE, 0] - 1000 * LATE
    assert steps.tolist() == [0, 1, 2, 3, 4]
    taken = rollout.action[here, LATE, 0]
    assert rollout.reward[here, LATE].tolist() == [
        t + 1 + 0.25 * float(action) for t, action in enumerate(taken)
    ]
    # The trace of its actions, which it shows, is that of the actions in its valid rows alone.
    traces = torch.cumsum(torch.arange(1, 6) * taken, 0)[:-1].to(torch.float32)
    assert torch.equal(rollout.obs[PLAIN][here[1:], LATE, 1], traces)
    check_the_others(found, expected)


def test_a_late_environment_has_the_advantages_of_its_steps_alone() -> None:
    """As if its gaps were not there."""
    rollout = (found := Bench(delays={(LATE, 2): 3}).fill()).rollout
    here = [0, 1, 2, 6, 7]
    value, reward = (field[here, LATE].tolist() for field in (rollout.value, rollout.reward))
    value.append(float(rollout.last_value[LATE]))
    running, expected = 0.0, []
    for t in reversed(range(5)):
        running = reward[t] + 0.9 * value[t + 1] - value[t] + 0.72 * running
        expected.insert(0, running)
    torch.testing.assert_close(found.advantage[here, LATE], torch.tensor(expected))
    assert (found.advantage[3:6, LATE] == 0).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_late_environment_is_cut_where_the_rollout_ends_first(groups: int) -> None:
    prompt, bench = Bench(), Bench(groups=groups, delays={(LATE, 5): 4})
    expected, found = prompt.fill(), bench.fill()
    rollout = found.rollout
    assert rollout.valid[:, LATE].tolist() == [True] * 5 + [False] * 3
    assert rollout.truncated[:, LATE].tolist() == [False] * 5 + [True] + [False] * 2
    assert (rollout.final_value[:, LATE] == 0).all()
    assert found.gathered.late == 1
    assert found.gathered.steps == STEPS * ENVS - 3
    check_the_others(found, expected)
    # The row before the cut bootstraps from what the policy saw in the cut row.
    value, reward = rollout.value[:, LATE], rollout.reward[:, LATE]
    last = reward[4] + 0.9 * value[5] - value[4]
    torch.testing.assert_close(found.advantage[4, LATE], last)
    torch.testing.assert_close(
        found.advantage[3, LATE], reward[3] + 0.9 * value[4] - value[3] + 0.72 * last
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_it_rejoins_in_the_next_rollout_where_nothing_is_written_for_the_dropped_step(
    groups: int,
) -> None:
    """Late at steps 5, 6 and 7 of the first rollout and at step 0 of the second."""
    prompt, bench = Bench(), Bench(groups=groups, delays={(LATE, 5): 4})
    prompt.fill()
    bench.fill()
    expected, found = prompt.fill(1), bench.fill(1)
    rollout = found.rollout
    assert rollout.valid[:, LATE].tolist() == [False, False] + [True] * 6
    assert not rollout.truncated[:, LATE].any()
    assert rollout.reward[:2, LATE].tolist() == [0.0, 0.0]
    steps = rollout.obs[PLAIN][2:, LATE, 0] - 1000 * LATE
    assert steps.tolist() == [6, 7, 8, 9, 10, 11]  # the dropped step was the sixth, and was made
    assert found.gathered == Gathered(STEPS * ENVS - 2, 0, found.gathered.metrics)
    check_the_others(found, expected)
    assert bench.fill(2).rollout.valid.all()


def test_an_environment_that_is_late_for_a_whole_rollout_has_no_row_in_it() -> None:
    bench = Bench(delays={(LATE, 7): STEPS + 2})
    prompt = Bench()
    first = bench.fill()
    assert first.gathered.late == 1
    prompt.fill()
    second = bench.fill(1)
    assert not second.rollout.valid[:, LATE].any()
    assert not second.rollout.truncated[:, LATE].any()
    assert second.gathered.late == 0  # counted once
    check_the_others(second, prompt.fill(1))
    third = bench.fill(2).rollout.valid[:, LATE].tolist()
    assert third == [False, False] + [True] * 6


@pytest.mark.parametrize("length", [6, 7, 8])
def test_what_a_dropped_step_earned_still_counts_in_the_episode(length: int) -> None:
    """Its sixth step is dropped; episodes of six end with it, the others after it."""
    kinds = {n: Kind(1000) for n in range(ENVS)} | {LATE: Kind(length)}
    bench = Bench(kinds=kinds, delays={(LATE, 5): 4})
    for version in range(2):
        bench.fill(version)
    taken = bench.pool.taken[LATE]
    whole = len(taken) // length
    returns = [
        sum(t + 1 + 0.25 * action for t, action in enumerate(taken[n * length : (n + 1) * length]))
        for n in range(whole)
    ]
    assert bench.gatherer.episodes.ended == whole > 0
    metrics = bench.gatherer.episodes.metrics()
    assert metrics["rollout/ep_len_mean"] == length
    assert metrics["rollout/ep_rew_mean"] == pytest.approx(np.mean(returns))


def test_what_late_environments_report_is_counted_when_it_comes() -> None:
    """The pool reports of every step how many actions its environment was sent before."""
    bench = Bench(delays={(LATE, 5): 4})
    means = [bench.fill(version).gathered.metrics.means()["env/number"] for version in range(2)]
    prompt = [*range(STEPS)] * (ENVS - 1)
    assert means[0] == pytest.approx(np.mean([*prompt, *range(5)]))
    later = [*range(STEPS, 2 * STEPS)] * (ENVS - 1)
    assert means[1] == pytest.approx(np.mean([*later, *range(5, 12)]))


@pytest.mark.parametrize(
    "slow", [[2, 3, 4, 5], [0, 1, 2, 3], [0, 2, 4, 5], [0, 1, 3, 4, 5]], ids=str
)
def test_if_more_than_half_of_a_group_is_slow_nobody_is_late(slow: list[int]) -> None:
    """Whoever comes first: everyone's rows are everyone's own."""
    prompt = Bench()
    bench = Bench(delays={(env, k): 1 for env in slow for k in (0, 3, 4)})
    for version in range(2):
        expected, found = prompt.fill(version), bench.fill(version)
        assert same(found.rollout, expected.rollout)
        assert found.gathered.late == 0
        assert found.gathered.steps == STEPS * ENVS


def test_of_a_slow_group_those_are_late_who_do_not_come_with_the_first_half() -> None:
    """Four of six are slow, two of these far slower: the two alone have gaps."""
    delays = {(env, 2): 1 for env in (0, 1)} | {(env, 2): 3 for env in (3, 4)}
    found = Bench(delays=delays).fill().rollout
    gaps = (~found.valid).sum(0).tolist()
    assert gaps[0] == gaps[1] == gaps[2] == gaps[5] == 0
    assert gaps[3] > 0
    assert gaps[4] > 0


def test_a_slow_group_does_not_make_the_other_late() -> None:
    prompt = Bench()
    bench = Bench(groups=2, delays={(env, 2): 2 for env in (0, 1, 2)})
    assert same(bench.fill().rollout, prompt.fill().rollout)


def test_several_are_late_at_once_and_come_back_one_by_one() -> None:
    prompt, bench = Bench(), Bench(delays={(3, 1): 2, (5, 1): 4, (0, 4): 1})
    expected, found = prompt.fill(), bench.fill()
    valid = found.rollout.valid
    assert valid[:, 3].tolist() == [True, True, False, False] + [True] * 4
    assert valid[:, 5].tolist() == [True, True] + [False] * 4 + [True] * 2
    assert valid[:, 0].tolist() == [True] * 5 + [False] + [True] * 2
    assert valid[:, [1, 2, 4]].all()
    prompt_ones = [1, 2, 4]
    assert torch.equal(found.advantage[:, prompt_ones], expected.advantage[:, prompt_ones])


@pytest.mark.parametrize("delay", [1, 3, 4, 20])
def test_a_state_taken_while_one_is_late_brings_everyone_back(delay: int) -> None:
    """To where the journal says: before the step of which nothing is known yet."""
    bench, other = Bench(delays={(LATE, 5): delay}), Bench()
    bench.fill()
    state = {name: value.copy() for name, value in bench.gatherer.state().items()}
    other.fill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert other.gatherer.restore(state).tolist() == []
    known = 5 if delay > 2 else 8 - delay
    assert state["running_length"][LATE] == state["length"][LATE] == known
    for name, value in other.gatherer.state().items():
        if name in ("episode", "length", "actions", "noise_rng", "returns", "running_return"):
            np.testing.assert_array_equal(value, state[name], name)
    rollout = other.fill(1).rollout
    assert rollout.valid.all()
    assert rollout.obs[PLAIN][0, LATE, 0] == 1000 * LATE + known
    # The journal goes on as it should: a second state brings back what the first run goes on to.
    again = other.gatherer.state()
    third = Bench()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third.gatherer.restore(again)
    assert same(third.fill(2).rollout, other.fill(2).rollout)


def test_a_gatherer_restored_while_one_is_late_waits_for_nobody_from_before() -> None:
    bench = Bench(delays={(LATE, 5): 50})
    bench.fill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.gatherer.restore(bench.gatherer.state())
    found = bench.fill(1)
    assert found.rollout.valid.all()
    assert found.gathered.late == 0


def test_a_rollout_that_is_not_wanted_any_more_is_given_up() -> None:
    bench = Bench()
    asked = iter([True, True, False])
    with pytest.raises(GatheringInterruptedError):
        bench.gatherer.fill(
            RolloutStorage(bench.pool.spec, STEPS, ENVS, CPU), 0, wanted=lambda: next(asked)
        )
    assert bench.pool.sent.tolist() == [2] * ENVS
