"""Filling a rollout: groups make no difference, and nobody waits for an environment that is late.

The pool is scripted: it says which environment is late after which of its actions, and how often
it is asked for in vain; and time is what passes when it is asked. So every row is known beforehand.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scripted import NEVER, TAIL, TIME, Kind, RowByRowPolicy, ScriptedPool
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.algos import ppo
from stoker.collect import gather
from stoker.collect.gather import FreeGatherer, Gathered, Gatherer
from stoker.config.schema import PPOSettings
from stoker.errors import GatheringInterruptedError
from stoker.monitor.phases import PhaseClock
from stoker.storage.staged import StagedStorage
from stoker.types import PLAIN, Rollout

CPU = torch.device("cpu")
STEPS, ENVS = 8, 6
KINDS = {0: Kind(3), 1: Kind(4, False), 2: Kind(1), 3: Kind(100), 4: Kind(5, False), 5: Kind(7)}
SETTINGS = PPOSettings(n_steps=STEPS, batch_size=STEPS, n_epochs=1, gamma=0.9, gae_lambda=0.8)
LATE = 3
"""The environment that is late in these tests; its episodes do not end."""
EVERYONE = tuple(range(ENVS))
OTHERS = tuple(n for n in EVERYONE if n != LATE)


@pytest.fixture(autouse=True)
def _asks_for_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "time", TIME)


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

    def __init__(self, kind: type[Gatherer] = FreeGatherer, **pool: Any) -> None:
        self.pool = ScriptedPool(ENVS, **{"kinds": KINDS, **pool})
        self.gatherer = kind(self.pool, RowByRowPolicy(), PhaseClock(), 0, CPU)
        self._storage = StagedStorage(self.pool.spec, STEPS, ENVS, CPU)

    def fill(self, version: int = 0) -> Filled:
        self.gatherer.begin(self._storage, version)
        gathered = self.gatherer.complete(self._storage)
        rollout = self._storage.judged_by(self.gatherer.policy, version)
        return Filled(pytree.tree_map_only(Tensor, torch.clone, rollout), gathered)


def same(first: Rollout, second: Rollout) -> bool:
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if a is not None)


def others(field: Tensor) -> Tensor:
    """The columns of everyone but the late one."""
    return field[:, OTHERS]


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
    one, several = Bench(Gatherer), Bench(Gatherer, groups=groups, delays=delays)
    for version in range(3):
        mine, theirs = one.fill(version), several.fill(version)
        assert same(mine.rollout, theirs.rollout)
        assert mine.gathered.steps == theirs.gathered.steps == STEPS * ENVS
        assert mine.gathered.late == theirs.gathered.late == 0
        assert mine.gathered.metrics.means() == theirs.gathered.metrics.means()
    assert one.gatherer.episodes.metrics() == several.gatherer.episodes.metrics()
    for name, value in one.gatherer.state().items():
        np.testing.assert_array_equal(several.gatherer.state()[name], value, name)


def test_groups_alternate_in_a_fixed_order_and_all_of_a_group_is_waited_for() -> None:
    bench = Bench(Gatherer, groups=2, delays={(0, 1): NEVER})
    bench.fill()
    assert bench.pool.sends == [(0, 1, 2), (3, 4, 5)] * STEPS
    assert set(bench.pool.patiences) == {None}


@pytest.mark.parametrize("groups", [1, 2])
def test_without_a_late_environment_not_waiting_gives_the_same_bits(groups: int) -> None:
    patient, hasty = Bench(Gatherer), Bench(groups=groups)
    for version in range(3):
        mine, theirs = patient.fill(version), hasty.fill(version)
        assert same(mine.rollout, theirs.rollout)
        assert mine.gathered.metrics.means() == theirs.gathered.metrics.means()
    for name, value in patient.gatherer.state().items():
        np.testing.assert_array_equal(hasty.gatherer.state()[name], value, name)


def test_nobody_waits_for_an_environment_that_is_late() -> None:
    """Asked for in vain three times, it is three steps behind, and makes them when others rest."""
    bench = Bench(delays={(LATE, 2): 3})
    bench.fill()
    assert bench.pool.sends == [EVERYONE] * 3 + [OTHERS] * 3 + [EVERYONE] * 2 + [(LATE,)] * 3


@pytest.mark.parametrize(
    "delays",
    [
        {(LATE, 2): 3},
        {(LATE, 0): TAIL},
        {(LATE, 7): TAIL},
        {(3, 1): 2, (5, 1): 4, (0, 4): 1},
        {(env, k): (env * k + env) % 4 for env in range(3, ENVS) for k in range(2 * STEPS)},
    ],
    ids=["middle", "first", "last", "several", "often"],
)
def test_lateness_that_ends_within_the_rollout_leaves_no_trace(
    delays: dict[tuple[int, int], int],
) -> None:
    """No gap, and everyone's rows are those of a rollout in which nobody was late."""
    prompt, bench = Bench(), Bench(delays=delays)
    for version in range(2):
        expected, found = prompt.fill(version), bench.fill(version)
        assert found.rollout.valid.all()
        assert same(found.rollout, expected.rollout)
        assert torch.equal(found.advantage, expected.advantage)
        assert found.gathered.steps == STEPS * ENVS
        assert found.gathered.late == 0
        means = (filled.gathered.metrics.means()["env/number"] for filled in (found, expected))
        assert next(means) == next(means)
    state = bench.gatherer.state()
    for name, value in prompt.gatherer.state().items():
        mine, theirs = state[name], value
        if name in ("returns", "lengths"):  # in the order in which episodes end
            mine, theirs = np.sort(mine), np.sort(theirs)
        np.testing.assert_array_equal(mine, theirs, name)


@pytest.mark.parametrize("last", [0, 2, 5, 7])
def test_a_late_environment_is_cut_where_the_rollout_ends_first(last: int) -> None:
    prompt, bench = Bench(), Bench(delays={(LATE, last): NEVER})
    expected, found = prompt.fill(), bench.fill()
    rollout, gaps = found.rollout, STEPS - last
    assert rollout.valid[:, LATE].tolist() == [True] * last + [False] * gaps
    assert rollout.truncated[:, LATE].tolist() == [t == last for t in range(STEPS)]
    assert not rollout.terminated[:, LATE].any()
    assert (rollout.final_value[:, LATE] == 0).all()
    assert (rollout.reward[last:, LATE] == 0).all()
    assert found.gathered[:2] == (STEPS * ENVS - gaps, 1)
    check_the_others(found, expected)
    # Up to there, and including what it saw and did there, its rows are those of a prompt one.
    for name in ("action", "behaviour_log_prob", "value"):
        mine, theirs = (getattr(each.rollout, name)[: last + 1, LATE] for each in (found, expected))
        assert torch.equal(mine, theirs), name
    mine, theirs = (each.rollout.obs[PLAIN][: last + 1, LATE] for each in (found, expected))
    assert torch.equal(mine, theirs)
    assert torch.equal(rollout.reward[:last, LATE], expected.rollout.reward[:last, LATE])


@pytest.mark.parametrize("last", [0, 2, 5, 7])
def test_a_late_environment_has_the_advantages_of_its_steps_alone(last: int) -> None:
    """The row before the cut bootstraps from what the policy saw in the cut row."""
    rollout = (found := Bench(delays={(LATE, last): NEVER}).fill()).rollout
    value, reward = (field[:, LATE].tolist() for field in (rollout.value, rollout.reward))
    running, expected = 0.0, list[float]()
    for t in reversed(range(last)):
        running = reward[t] + 0.9 * value[t + 1] - value[t] + 0.72 * running
        expected.insert(0, running)
    torch.testing.assert_close(found.advantage[:last, LATE], torch.tensor(expected))
    assert (found.advantage[last:, LATE] == 0).all()


@pytest.mark.parametrize("last", [0, 5, 7])
def test_it_rejoins_in_the_next_rollouts_first_row_and_the_dropped_step_is_nowhere(
    last: int,
) -> None:
    prompt, bench = Bench(), Bench(delays={(LATE, last): NEVER})
    prompt.fill()
    bench.fill()
    bench.pool.release(LATE)
    expected, found = prompt.fill(1), bench.fill(1)
    rollout = found.rollout
    assert rollout.valid.all()
    assert not rollout.truncated[:, LATE].any()
    steps = rollout.obs[PLAIN][:, LATE, 0] - 1000 * LATE
    assert steps.tolist() == [last + 1 + t for t in range(STEPS)]  # the dropped step was made
    taken = rollout.action[:, LATE, 0].tolist()
    assert taken == bench.pool.taken[LATE][last + 1 :]
    assert rollout.reward[:, LATE].tolist() == [
        last + 2 + t + 0.25 * action for t, action in enumerate(taken)
    ]
    # Its noise is that of the rows where it stands.
    log_prob = rollout.behaviour_log_prob[:, LATE]
    assert torch.equal(log_prob, expected.rollout.behaviour_log_prob[:, LATE])
    assert found.gathered[:2] == (STEPS * ENVS, 0)
    check_the_others(found, expected)
    assert bench.fill(2).rollout.valid.all()


@pytest.mark.parametrize("terminates", [True, False])
def test_an_episode_that_ends_with_the_dropped_step_ends_in_no_row(terminates: bool) -> None:
    """Episodes of six: that of the dropped step is over, the next one's end is in row 5."""
    kinds = {**KINDS, LATE: Kind(6, terminates)}
    bench = Bench(kinds=kinds, delays={(LATE, 5): NEVER})
    bench.fill()
    bench.pool.release(LATE)
    rollout = bench.fill(1).rollout
    ends, never = [t == 5 for t in range(STEPS)], [False] * STEPS
    assert rollout.terminated[:, LATE].tolist() == (ends if terminates else never)
    assert rollout.truncated[:, LATE].tolist() == (never if terminates else ends)
    final = rollout.final_value[:, LATE] != 0
    assert final.tolist() == (never if terminates else ends)
    steps = rollout.obs[PLAIN][:, LATE, 0] - 1000 * LATE
    assert steps.tolist() == [100, 101, 102, 103, 104, 105, 200, 201]


def test_an_environment_can_be_cut_in_every_rollout() -> None:
    """It makes six steps of the first rollout, the last of which is dropped, then five."""
    prompt, bench = Bench(), Bench(delays={(LATE, 5): NEVER, (LATE, 10): NEVER})
    for version in range(2):
        expected, found = prompt.fill(version), bench.fill(version)
        rows = 5 - version
        assert rows == found.rollout.valid[:, LATE].sum()
        assert found.rollout.valid[:rows, LATE].all()
        assert found.rollout.truncated[:, LATE].tolist() == [t == rows for t in range(STEPS)]
        assert found.gathered.late == 1
        check_the_others(found, expected)
        bench.pool.release(LATE)
    third = bench.fill(2).rollout
    assert third.valid.all()
    assert third.obs[PLAIN][0, LATE, 0] == 1000 * LATE + 11


def test_an_environment_that_is_late_for_a_whole_rollout_has_no_row_in_it() -> None:
    prompt, bench = Bench(), Bench(delays={(LATE, 7): NEVER})
    assert bench.fill().gathered.late == 1
    prompt.fill()
    asked = len(bench.pool.patiences)
    second = bench.fill(1)
    assert not second.rollout.valid[:, LATE].any()
    assert not second.rollout.truncated[:, LATE].any()
    assert not second.rollout.terminated[:, LATE].any()
    assert (second.advantage[:, LATE] == 0).all()
    assert second.gathered[:2] == (STEPS * (ENVS - 1), 0)
    assert len(bench.pool.patiences) - asked == STEPS  # no longer than the others take
    check_the_others(second, prompt.fill(1))
    bench.pool.release(LATE)
    third = bench.fill(2)
    assert third.rollout.valid.all()
    assert third.rollout.obs[PLAIN][0, LATE, 0] == 1000 * LATE + 8
    check_the_others(third, prompt.fill(2))


@pytest.mark.parametrize("length", [6, 7, 8])
def test_what_a_dropped_step_earned_still_counts_in_the_episode(length: int) -> None:
    """Its sixth step is dropped; episodes of six end with it, the others after it."""
    kinds = {n: Kind(1000) for n in range(ENVS)} | {LATE: Kind(length)}
    bench = Bench(kinds=kinds, delays={(LATE, 5): NEVER})
    bench.fill()
    bench.pool.release(LATE)
    bench.fill(1)
    taken = bench.pool.taken[LATE]
    assert len(taken) == 6 + STEPS
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
    bench, means = Bench(delays={(LATE, 5): NEVER}), []
    for version in range(2):
        means.append(bench.fill(version).gathered.metrics.means()["env/number"])
        if version == 0:
            bench.pool.release(LATE)
    prompt = [*range(STEPS)] * (ENVS - 1)
    assert means[0] == pytest.approx(np.mean([*prompt, *range(5)]))
    later = [*range(STEPS, 2 * STEPS)] * (ENVS - 1)
    assert means[1] == pytest.approx(np.mean([*later, *range(5, 6 + STEPS)]))


@pytest.mark.parametrize("delay", [1, 10 * TAIL])
@pytest.mark.parametrize(
    "slow", [[2, 3, 4, 5], [0, 1, 2, 3], [0, 2, 4, 5], [0, 1, 3, 4, 5]], ids=str
)
def test_if_more_than_half_are_slow_nobody_is_cut(slow: list[int], delay: int) -> None:
    """Until half have all their steps; whoever comes first: everyone's rows are their own."""
    prompt = Bench()
    bench = Bench(delays={(env, k): delay for env in slow for k in (0, 3, 4)})
    for version in range(2):
        expected, found = prompt.fill(version), bench.fill(version)
        assert same(found.rollout, expected.rollout)
        assert found.gathered.late == 0
        assert found.gathered.steps == STEPS * ENVS


@pytest.mark.parametrize("slow", [[3, 4, 5], [0, 2, 4], [1]], ids=str)
def test_if_half_or_fewer_are_slow_they_are_cut(slow: list[int]) -> None:
    found = Bench(delays={(env, 2): 10 * TAIL for env in slow}).fill()
    gaps = (~found.rollout.valid).sum(0).tolist()
    assert gaps == [STEPS - 2 if env in slow else 0 for env in EVERYONE]
    assert found.gathered.late == len(slow)


def test_those_are_cut_who_do_not_come_soon_after_the_first_half() -> None:
    """Four of six are slow, two of these far slower: the two alone have gaps."""
    delays = {(env, 2): 3 * TAIL for env in (0, 1)} | {(env, 2): NEVER for env in (3, 4)}
    found = Bench(delays=delays).fill()
    gaps = (~found.rollout.valid).sum(0).tolist()
    assert gaps == [0, 0, 0, STEPS - 2, STEPS - 2, 0]
    assert found.gathered.late == 2


def test_several_are_late_at_once_and_each_is_cut_where_it_stands() -> None:
    prompt, bench = Bench(), Bench(delays={(3, 1): NEVER, (5, 4): NEVER, (0, 2): 4})
    expected, found = prompt.fill(), bench.fill()
    valid, truncated = found.rollout.valid, found.rollout.truncated
    assert valid[:, 3].tolist() == [t < 1 for t in range(STEPS)]
    assert valid[:, 5].tolist() == [t < 4 for t in range(STEPS)]
    assert truncated[:, 3].tolist() == [t == 1 for t in range(STEPS)]
    assert truncated[:, 5].tolist() == [t == 4 for t in range(STEPS)]
    prompt_ones = [0, 1, 2, 4]
    assert valid[:, prompt_ones].all()
    assert torch.equal(found.advantage[:, prompt_ones], expected.advantage[:, prompt_ones])
    assert found.gathered.late == 2
    # They come back in different rollouts; each in its first row.
    bench.pool.release(5)
    second = bench.fill(1).rollout
    assert not second.valid[:, 3].any()
    assert second.valid[:, [0, 1, 2, 4, 5]].all()
    bench.pool.release(3)
    third = bench.fill(2).rollout
    assert third.valid.all()
    assert third.obs[PLAIN][0, 3, 0] == 3002


@pytest.mark.parametrize(
    ("tick", "slowness", "longer"),
    [(2.0**-10, 0, 21), (2.0**-8, 0, 6), (2.0**-10, 12, 21), (0.25, 12, 6)],
    ids=["20 ms", "fewer of 20 ms", "5 % is less", "5 %"],
)
def test_those_that_are_not_done_get_a_twentieth_longer_and_20_ms_at_least(
    tick: float, slowness: int, longer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone is asked for 8 times, or 104 times: 5 % of that is begun with the sixth."""
    monkeypatch.setattr(TIME, "tick", tick)
    usual = {(env, k): slowness for env in EVERYONE for k in range(STEPS)}
    for delay, cut in ((longer, 0), (longer + 1, 1)):
        bench = Bench(delays={**usual, (LATE, 7): slowness + delay})
        assert bench.fill().gathered.late == cut
        asks = STEPS * (1 + slowness)
        assert len(bench.pool.patiences) == asks + longer
        assert set(bench.pool.patiences[:asks]) == {
            0.25
        }  # then it looks whether it is still wanted
        left = [max(0.02, 0.05 * asks * tick) - n * tick for n in range(longer)]
        assert bench.pool.patiences[asks:] == pytest.approx([min(0.25, s) for s in left])


def test_a_step_that_comes_late_wins_nobody_more_time() -> None:
    """Asked for 11 times a step, it makes two in the time of the others' 8 and of 21 more."""
    bench = Bench(delays={(LATE, k): 10 for k in range(STEPS)})
    found = bench.fill()
    assert len(bench.pool.patiences) == STEPS + TAIL
    assert found.rollout.valid[:, LATE].tolist() == [t < 2 for t in range(STEPS)]
    assert found.rollout.truncated[:, LATE].tolist() == [t == 2 for t in range(STEPS)]


def test_by_the_real_clock_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "time", time)
    bench = Bench(delays={(LATE, 5): NEVER})
    began = time.perf_counter()
    found = bench.fill()
    assert time.perf_counter() - began >= 0.02
    assert found.rollout.valid[:, LATE].tolist() == [t < 5 for t in range(STEPS)]
    assert found.gathered.late == 1


@pytest.mark.parametrize("rollouts", [1, 2])
@pytest.mark.parametrize("last", [0, 5, 7])
def test_a_state_taken_while_one_is_late_brings_everyone_back(last: int, rollouts: int) -> None:
    """To where the journal says: before the step of which nothing is known yet."""
    bench, other = Bench(delays={(LATE, last): NEVER}), Bench()
    for version in range(rollouts):
        bench.fill(version)
    state = {name: value.copy() for name, value in bench.gatherer.state().items()}
    other.fill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert other.gatherer.restore(state).tolist() == []
    assert state["busy"].tolist() == [env == LATE for env in EVERYONE]
    assert state["running_length"][LATE] == state["length"][LATE] == last
    assert state["actions"][:last, LATE, 0].tolist() == bench.pool.taken[LATE][:last]
    assert other.pool.where(LATE)[0] == 1000 * LATE + last
    for name, value in other.gatherer.state().items():
        if name in ("episode", "length", "actions", "noise_rng", "returns", "running_return"):
            np.testing.assert_array_equal(value, state[name], name)
    assert not other.gatherer.state()["busy"].any()
    rollout = other.fill(1).rollout
    assert rollout.valid.all()
    assert rollout.obs[PLAIN][0, LATE, 0] == 1000 * LATE + last
    # The journal goes on as it should: a second state brings back what the first run goes on to.
    again = other.gatherer.state()
    third = Bench()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third.gatherer.restore(again)
    assert same(third.fill(2).rollout, other.fill(2).rollout)


def test_a_state_after_one_came_back_holds_the_step_that_was_dropped() -> None:
    bench, other = Bench(delays={(LATE, 5): NEVER}), Bench()
    bench.fill()
    bench.pool.release(LATE)
    bench.fill(1)
    state = bench.gatherer.state()
    assert not state["busy"].any()
    assert state["length"][LATE] == 6 + STEPS
    assert state["actions"][:, LATE, 0].tolist() == bench.pool.taken[LATE]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.gatherer.restore(state)
    assert same(other.fill(2).rollout, bench.fill(2).rollout)


def test_who_is_not_amid_a_step_must_come_back_to_where_it_stood() -> None:
    """A late environment excuses nobody else."""
    bench, other = Bench(delays={(LATE, 5): NEVER}), Bench()
    bench.fill()
    state = {name: value.copy() for name, value in bench.gatherer.state().items()}
    state[f"last_obs.{PLAIN}"][[0, LATE]] += 1
    with pytest.warns(UserWarning, match="1 of 6 environments"):
        other.gatherer.restore(state)


def test_a_gatherer_restored_while_one_is_late_waits_for_nobody_from_before() -> None:
    bench = Bench(delays={(LATE, 5): NEVER})
    bench.fill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.gatherer.restore(bench.gatherer.state())
    found = bench.fill(1)
    assert found.rollout.valid.all()
    assert found.rollout.obs[PLAIN][0, LATE, 0] == 1000 * LATE + 5
    assert found.gathered.late == 0


@pytest.mark.parametrize(("kind", "sent"), [(Gatherer, 2), (FreeGatherer, 3)])
def test_a_rollout_that_is_not_wanted_any_more_is_given_up(kind: type[Gatherer], sent: int) -> None:
    bench = Bench(kind)
    asked = iter([True, True, False])
    storage = StagedStorage(bench.pool.spec, STEPS, ENVS, CPU)
    bench.gatherer.begin(storage, 0)
    with pytest.raises(GatheringInterruptedError):
        bench.gatherer.complete(storage, wanted=lambda: next(asked))
    assert bench.pool.sent.tolist() == [sent] * ENVS


def test_a_rollout_is_given_up_also_while_nobody_answers() -> None:
    bench = Bench(delays={(env, 1): NEVER for env in EVERYONE})
    asked = iter([True] * 50 + [False])
    storage = StagedStorage(bench.pool.spec, STEPS, ENVS, CPU)
    bench.gatherer.begin(storage, 0)
    with pytest.raises(GatheringInterruptedError):
        bench.gatherer.complete(storage, wanted=lambda: next(asked))
    assert bench.pool.sent.tolist() == [2] * ENVS


class Roomy(Bench):
    """With room for twice the steps of an environment, where others make fewer."""

    def __init__(self, **pool: Any) -> None:
        super().__init__(**pool)
        self._storage = StagedStorage(self.pool.spec, STEPS, ENVS, CPU, capacity=2 * STEPS)


def test_where_there_is_room_others_make_the_steps_that_one_does_not() -> None:
    bench = Roomy(delays={(LATE, 2): NEVER})
    found = bench.fill()
    rollout, valid = found.rollout, found.rollout.valid
    assert found.gathered.steps == STEPS * ENVS - 1  # what the late one is amid was counted on
    assert valid[:, LATE].tolist() == [True, True] + [False] * (len(valid) - 2)
    assert others(valid)[:STEPS].all()
    assert len(valid) > STEPS
    assert rollout.chosen is not None
    assert len(rollout.chosen) == STEPS * ENVS
    taken = valid.flatten()[rollout.chosen]
    assert taken.sum() == STEPS * ENVS - 1  # one row is filled up with one that carries no loss
    assert rollout.chosen.tolist() == sorted(set(rollout.chosen.tolist()))


def test_steps_beyond_the_mean_are_rows_like_any_other() -> None:
    """Advantages of the chosen rows are those of the same steps, walked through one by one."""
    found = Roomy(delays={(LATE, 2): NEVER}).fill()
    rollout = found.rollout
    rows, _ = ppo.prepare(rollout, rollout.reward, SETTINGS)
    assert rollout.chosen is not None
    assert len(rows.value) == STEPS * ENVS
    assert torch.equal(rows.value, rollout.value.flatten()[rollout.chosen])
    env = 5  # whose seventh step ends an episode, and who makes more than eight
    steps = int(rollout.valid[:, env].sum())
    running, expected = 0.0, {}
    for t in reversed(range(steps)):
        after = rollout.value[t + 1, env] if t + 1 < steps else rollout.last_value[env]
        ended = bool(rollout.terminated[t, env])
        delta = rollout.reward[t, env] + (0.0 if ended else 0.9 * after) - rollout.value[t, env]
        running = float(delta) + (0.0 if ended else 0.72 * running)
        expected[t * ENVS + env] = running
    for place, row in enumerate(rollout.chosen.tolist()):
        if row in expected:
            assert float(rows.advantage[place]) == pytest.approx(expected[row], rel=1e-4, abs=1e-3)


def test_with_room_and_nobody_late_all_make_as_many() -> None:
    roomy, exact = Roomy().fill(), Bench().fill()
    assert roomy.rollout.valid.all()
    assert roomy.rollout.chosen is not None
    assert roomy.rollout.chosen.tolist() == list(range(STEPS * ENVS))
    assert roomy.gathered.steps == exact.gathered.steps


def test_that_one_has_made_all_it_may_is_not_yet_the_end() -> None:
    """One environment is done with its room before the others have made half of their steps."""
    slow = {(env, t): 3 for env in range(ENVS) if env != LATE for t in range(2 * STEPS)}
    found = Roomy(delays=slow).fill()
    assert found.gathered[:2] == (STEPS * ENVS, 0)
    assert found.rollout.valid[:, LATE].sum() == 2 * STEPS
