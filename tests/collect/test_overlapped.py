"""Overlapped collection: one iteration late and never later, and as honest as in step."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from counting import in_step
from scripted import TAIL, TIME, RowByRowPolicy, ScriptedPool
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from stoker.collect import gather
from stoker.collect.gather import FreeGatherer, Gatherer
from stoker.collect.overlapped import OverlappedCollector
from stoker.collect.weights import Weights
from stoker.config.schema import NetworkSettings
from stoker.errors import EnvError
from stoker.monitor.phases import PhaseClock
from stoker.nn.actor_critic import ActorCritic
from stoker.pools.inline import InlinePool
from stoker.pools.spaces import describe_env
from stoker.storage.staged import StagedStorage
from stoker.types import PLAIN, Rollout, StepBatch

CPU = torch.device("cpu")
STEPS, ENVS = 8, 4


@pytest.fixture(autouse=True)
def _asks_for_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it waits for those that are late is counted in asks."""
    monkeypatch.setattr(gather, "time", TIME)


class Module(nn.Module):
    """Weights for a scripted policy to act by."""

    def __init__(self, policy: RowByRowPolicy) -> None:
        super().__init__()
        self.register_buffer("bias", policy.bias)


class Bench:
    """An overlapped collector on a scripted pool; the policies are numbers."""

    def __init__(self, pool: ScriptedPool, ahead: bool = True) -> None:
        self.pool = pool
        self.policy, acting = RowByRowPolicy(), RowByRowPolicy()
        self.clock, self.collect_clock = PhaseClock(), PhaseClock()
        gatherer = FreeGatherer(pool, acting, self.collect_clock, 0, CPU)
        first, second = (StagedStorage(pool.spec, STEPS, pool.n_envs, CPU) for _ in range(2))
        weights = Weights(Module(self.policy), Module(acting))
        self.collector = OverlappedCollector(gatherer, (first, second), weights, self.clock, ahead)

    def learn(self) -> None:
        """An update: the weights are the number of updates made."""
        self.policy.bias += 1
        self.collector.publish()

    def iterate(self, last: bool = False) -> tuple[int, Rollout]:
        """Collect, judge and learn: how old the weights were that acted, and a copy."""
        storage = self.collector.collect(last=last)
        version = self.collector.version
        rollout = storage.judged_by(self.policy, version)
        assert (rollout.policy_version == storage.version).all()
        rollout = pytree.tree_map_only(Tensor, torch.clone, rollout)
        self.learn()
        return version - storage.version, rollout


@contextmanager
def overlapped(
    pool: ScriptedPool | None = None, steps: int = STEPS, ahead: bool = True
) -> Iterator[Bench]:
    before = gathering()
    bench = Bench(pool or ScriptedPool(ENVS), ahead)
    try:
        yield bench
    finally:
        bench.collector.close()
        assert gathering() == before


def gathering() -> int:
    """How many collectors' threads are running."""
    return sum(thread.name == "stoker-collect" for thread in threading.enumerate())


def same(first: Rollout, second: Rollout) -> bool:
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs if a is not None)


def test_ahead_is_one_iteration_late_from_the_second_rollout_on_and_never_more() -> None:
    with overlapped() as bench:
        assert [bench.iterate()[0] for _ in range(6)] == [0, 1, 1, 1, 1, 1]


def test_not_ahead_it_is_never_late() -> None:
    with overlapped(ahead=False) as bench:
        assert [bench.iterate()[0] for _ in range(4)] == [0, 0, 0, 0]


def test_changing_over_takes_one_rollout() -> None:
    with overlapped(ahead=False) as bench:
        lags = [bench.iterate()[0]]
        bench.collector.ahead = True
        lags += [bench.iterate()[0] for _ in range(3)]
        bench.collector.ahead = False
        lags += [bench.iterate()[0] for _ in range(3)]
    assert lags == [0, 0, 1, 1, 1, 0, 0]


def test_every_row_is_of_the_weights_that_its_version_names() -> None:
    """Weights are the number of updates made, and log-probabilities tell them."""
    with overlapped() as bench:
        for number in range(4):
            lag, rollout = bench.iterate()
            acted = number - lag
            assert (rollout.policy_version == acted).all()
            noise = -rollout.behaviour_log_prob - acted
            assert (noise >= -1e-5).all()
            assert (noise < 1 + 1e-5).all()
            if lag:  # judged anew by the policy that learns
                expected = -rollout.action[..., 0] - float(number)
                assert torch.equal(rollout.log_prob, expected)
            else:
                assert torch.equal(rollout.log_prob, rollout.behaviour_log_prob)
            place, trace = rollout.obs[PLAIN].unbind(-1)
            assert torch.equal(rollout.value, (place % 100) ** 2 + 0.5 * trace + number)


def test_two_rollouts_follow_each_other_without_a_break() -> None:
    """Nothing is lost or done twice between them: they are those of one twice as long."""
    with overlapped(ahead=False) as bench:
        policy, found = bench.policy, []
        for _ in range(3):
            storage = bench.collector.collect()  # and nothing is learned
            rollout = storage.judged_by(policy, bench.collector.version)
            found.append(pytree.tree_map_only(Tensor, torch.clone, rollout))
    other = in_step(ScriptedPool(ENVS), RowByRowPolicy(), STEPS)
    for rollout in found:
        assert same(rollout, other.collect().judged_by(RowByRowPolicy(), other.version))


def test_last_begins_nothing() -> None:
    """The rollout after it is gathered under the weights that came of it."""
    with overlapped() as bench:
        assert [bench.iterate()[0] for _ in range(3)] == [0, 1, 1]
        assert bench.iterate(last=True)[0] == 1
        made = bench.pool.sent.sum()
        assert made == 4 * STEPS * ENVS
        assert [bench.iterate()[0] for _ in range(2)] == [0, 1]


def test_steps_late_ones_and_metrics_are_of_the_rollout_handed_over() -> None:
    """It is late for the rest of the first rollout, for the whole second and at the third's first
    ask, and then goes on from the third's first row."""
    delay = 1 + TAIL + STEPS + 1
    with overlapped(ScriptedPool(ENVS, delays={(1, STEPS - 1): delay})) as bench:
        found = []
        for _ in range(3):
            bench.iterate()
            found.append((bench.collector.steps, bench.collector.late))
        whole = STEPS * ENVS
        assert found == [(whole - 1, 1), (whole - STEPS, 0), (whole, 0)]


def test_metrics_are_means_since_the_last_call_and_of_rollouts_handed_over() -> None:
    with overlapped() as bench, overlapped(ahead=False) as slow:
        for each in (bench, slow):
            each.collector.collect()
        bench.collector._orders.put(None)  # so that it says when the next one is full
        bench.collector._answers.get(timeout=60)
        expected = slow.collector.metrics()
        assert bench.collector.metrics() == expected
        assert expected["env/number"] == (STEPS - 1) / 2
        assert bench.collector.metrics().keys() == {"rollout/ep_rew_mean", "rollout/ep_len_mean"}


def test_an_error_in_the_thread_is_raised_where_the_rollout_is_asked_for() -> None:
    with overlapped(ScriptedPool(ENVS, fails_at=2 * STEPS * ENVS + 5)) as bench:
        bench.iterate()
        bench.iterate()
        with pytest.raises(EnvError, match="out of ideas"):
            bench.iterate()


def test_an_error_in_taking_weights_is_raised_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Weights) -> int:
        raise RuntimeError("no more memory")

    with overlapped() as bench:
        bench.iterate()
        monkeypatch.setattr(Weights, "take", fail)
        with pytest.raises(RuntimeError, match="no more memory"):
            bench.iterate()


class GatedPool(ScriptedPool):
    """Stops after `passes` answers until the gate is opened."""

    def __init__(self, passes: int) -> None:
        super().__init__(ENVS)
        self.passes, self.answers = passes, 0
        self.stopped, self.gate = threading.Event(), threading.Event()

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        self.answers += 1
        if self.answers > self.passes:
            self.stopped.set()
            assert self.gate.wait(timeout=60)
        return super().recv(at_least, among, patience)


def test_closing_while_a_rollout_is_under_way_gives_it_up() -> None:
    pool = GatedPool(passes=STEPS + 3)
    bench = Bench(pool)
    bench.iterate()
    assert pool.stopped.wait(timeout=60)
    closing = threading.Thread(target=bench.collector.close)
    closing.start()
    while not bench.collector._closing:
        pass
    pool.gate.set()
    closing.join(timeout=60)
    assert not closing.is_alive()
    assert gathering() == 0
    # The step that was under way, and the actions sent after it, at the most.
    assert STEPS + 4 <= pool.sent[0] <= STEPS + 5


def test_closing_twice_or_before_anything_was_collected_is_no_harm() -> None:
    for rollouts in (0, 1):
        with overlapped() as bench:
            for _ in range(rollouts):
                bench.iterate()
            bench.collector.close()
            bench.collector.close()
        assert gathering() == 0


def test_the_state_while_a_rollout_is_under_way_is_that_of_its_beginning() -> None:
    other = in_step(ScriptedPool(ENVS), RowByRowPolicy(), STEPS)
    other.collect()
    expected = other.state()
    pool = GatedPool(passes=STEPS + 3)
    with overlapped(pool) as bench:
        bench.iterate()
        assert pool.stopped.wait(timeout=60)
        state = bench.collector.state()
        kept = {name: value.copy() for name, value in state.items()}
        pool.gate.set()
        _, second = bench.iterate()  # the one that was under way
        for name, value in expected.items():
            np.testing.assert_array_equal(kept[name], value, name)
            np.testing.assert_array_equal(state[name], value, name)  # nobody writes to it
    with overlapped() as restored:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert restored.collector.restore(kept).tolist() == []
        for name, value in expected.items():
            np.testing.assert_array_equal(restored.collector.state()[name], value, name)
        _, again = restored.iterate()
        for name in ("action", "reward", "terminated", "truncated", "behaviour_log_prob"):
            assert torch.equal(getattr(again, name), getattr(second, name)), name
        assert torch.equal(again.obs[PLAIN], second.obs[PLAIN])


def test_restoring_while_a_rollout_is_under_way_forgets_it() -> None:
    with overlapped() as bench:
        bench.iterate()
        state = {name: value.copy() for name, value in bench.collector.state().items()}
        bench.iterate()
        bench.iterate()
        bench.collector.restore(state)
        bench.collector.publish()
        version = bench.collector.version
        storage = bench.collector.collect()
        assert storage.version == version
        step = storage.judged_by(bench.policy, version).obs[PLAIN][0, :, 0] % 100
        assert step.tolist() == state["length"].tolist()


def test_the_learner_waits_and_the_thread_collects_each_on_its_own_clock() -> None:
    with overlapped() as bench:
        bench.iterate()
        bench.iterate(last=True)
        assert set(bench.clock.total) == {"wait"}
        assert set(bench.collect_clock.total) == {"inference", "env", "store"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
def test_products_take_no_more_cores_than_torch_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's count is a thread's own: the collector's would begin with that of all cores."""
    square, product = torch.ones(256, 256), torch.ones(256, 256)
    started: list[int] = []
    begin = OverlappedCollector._begin

    def counted(self: OverlappedCollector, storage: StagedStorage) -> None:
        before = len(os.listdir("/proc/self/task"))
        torch.mm(square, square, out=product)
        started.append(len(os.listdir("/proc/self/task")) - before)
        begin(self, storage)

    monkeypatch.setattr(OverlappedCollector, "_begin", counted)
    told = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with overlapped() as bench:
            bench.iterate(last=True)
    finally:
        torch.set_num_threads(told)
    assert started == [0]


def cartpole_run(
    kind: type[Gatherer], seed: int, learn: Callable[[ActorCritic, Rollout], None]
) -> list[Rollout]:
    """Four rollouts of CartPole, overlapped, with a learner that moves the weights."""
    trial = gymnasium.make("CartPole-v1")
    spec = describe_env("CartPole-v1", trial, {})
    trial.close()
    policies = []
    for _ in range(2):
        torch.manual_seed(0)
        policy = ActorCritic(spec, NetworkSettings(network_arch=(8,)), normalize_obs=True)
        policy.seed(seed, CPU)
        policies.append(policy)
    policy, acting = policies
    rollouts = []
    with InlinePool(lambda: gymnasium.make("CartPole-v1"), spec, 3) as pool:
        gatherer = kind(pool, acting, PhaseClock(), seed, CPU)
        first, second = (StagedStorage(spec, 50, 3, CPU) for _ in range(2))
        weights = Weights(policy, acting)
        collector = OverlappedCollector(gatherer, (first, second), weights, PhaseClock())
        for _ in range(4):
            rollout = collector.collect().judged_by(policy, collector.version)
            rollouts.append(pytree.tree_map_only(Tensor, torch.clone, rollout))
            learn(policy, rollout)
            policy.update_moments(rollout.obs, rollout.valid)
            collector.publish()
        collector.close()
    return rollouts


@pytest.mark.parametrize("kind", [Gatherer, FreeGatherer])
def test_the_same_seed_gives_the_same_bits_though_threads_race(kind: type[Gatherer]) -> None:
    def learn(policy: ActorCritic, rollout: Rollout) -> None:
        now = policy({PLAIN: rollout.obs[PLAIN].flatten(0, 1)}, None, rollout.action.flatten(0, 1))
        loss = (now.value - rollout.reward.flatten()).square().mean() - now.log_prob.mean()
        policy.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad

    first, second, other = (cartpole_run(kind, seed, learn) for seed in (3, 3, 4))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[2].log_prob, first[2].behaviour_log_prob)
