"""Which pool, and why."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from awaitable import AsCoroutines
from gymnasium import spaces
from pool_envs import Counter, Wanderer, spec_of

from stoker.errors import EnvError, EpisodeCutError, SpaceError
from stoker.pools import choose as choosing
from stoker.pools.awaited import as_blocking
from stoker.pools.choose import HANDOVER_PER_WORKER_S, HANDOVER_S, Probe, choose, probe
from stoker.pools.inline import InlinePool
from stoker.pools.slot import episode_seed


def busy(seconds: float) -> Probe:
    """An environment whose steps take as long, all of it work."""
    return Probe(spec_of(Counter()), seconds, seconds, False)


def test_cheap_steps_stay_inline() -> None:
    choice = choose(busy(5e-6), n_envs=8, cores=8)
    assert (choice.pool, choice.n_workers) == ("inline", 0)


def test_dear_steps_of_many_go_to_processes() -> None:
    choice = choose(busy(1e-3), n_envs=16, cores=8)
    assert (choice.pool, choice.n_workers) == ("process", 8)


@pytest.mark.parametrize("pool", ["inline", "process"])
def test_the_reason_says_the_figures(pool: str) -> None:
    step = {"inline": 4e-6, "process": 1e-3}[pool]
    choice = choose(busy(step), n_envs=16, cores=4)
    workers_take = 4 * step + HANDOVER_S + 4 * HANDOVER_PER_WORKER_S
    assert choice.pool == pool
    assert choice.reason == (
        f"a step takes {step * 1e6:,.0f} us: 16 one after the other {16 * step * 1e3:.2f} ms, with "
        f"4 workers {workers_take * 1e3:.2f} ms"
    )


def test_processes_must_save_time_beyond_doubt() -> None:
    """Of 29 us a step four take 116 us here, and by the estimate 112 in two processes."""
    assert choose(busy(29e-6), n_envs=4, cores=2).pool == "inline"
    assert choose(busy(100e-6), n_envs=4, cores=2).pool == "process"


def test_one_environment_gains_nothing_from_a_worker() -> None:
    assert choose(busy(0.1), n_envs=1, cores=64).pool == "inline"


def test_one_core_gains_nothing_from_a_worker() -> None:
    assert choose(busy(0.01), n_envs=8, cores=1).pool == "inline"


@pytest.mark.parametrize(
    ("n_envs", "cores", "n_workers", "expected"), [(4, 16, 0, 4), (16, 8, 3, 3), (4, 2, 9, 4)]
)
def test_workers_are_those_asked_for_else_the_cores_and_no_more_than_environments(
    n_envs: int, cores: int, n_workers: int, expected: int
) -> None:
    assert choose(busy(0.01), n_envs, cores, n_workers).n_workers == expected


def test_the_dearer_a_step_the_sooner_processes_win() -> None:
    picks = [choose(busy(step), n_envs=8, cores=8).pool for step in (1e-6, 1e-5, 1e-4, 1e-3)]
    assert picks == sorted(picks), "inline, then process, and never back"
    assert {picks[0], picks[-1]} == {"inline", "process"}


class Waiter(Counter):
    """Waits ten milliseconds a step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


def test_a_probe_times_steps_and_describes() -> None:
    found = probe("waiter", Waiter(), seconds=0.1)
    assert found.spec.name == "waiter"
    assert 0.01 <= found.step_wall_s < 0.5


def test_a_probe_of_a_slow_step_takes_three() -> None:
    env = Waiter()
    probe("waiter", env, seconds=0.0)
    assert len(env.actions) == 3


def test_a_probe_of_a_quick_step_takes_no_more_than_a_thousand() -> None:
    env = Counter()
    probe("counter", env, seconds=60.0)
    assert len(env.actions) == 1000
    assert {0, 1, 2} == set(env.actions)


@pytest.mark.parametrize("space", [spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 3])])
def test_a_probe_takes_only_actions_that_are_allowed(space: Any) -> None:
    class Strict(Wanderer):
        def __init__(self) -> None:
            super().__init__(masks=True)
            self.action_space = space

        def _info(self) -> dict[str, Any]:
            info = super()._info()
            self.mask = info["action_mask"]
            self.mask[0] = False
            self.mask[1] = True
            return info

        def step(self, action: Any) -> Any:
            first = np.ravel(action)[0] - np.ravel(getattr(space, "start", 0))[0]
            assert self.mask[first]
            return super().step(action)

    probe("strict", Strict(), seconds=0.01)


def test_a_probe_resets_with_seeds_as_pools_do() -> None:
    env = Counter(length=1)
    probe("counter", env, seconds=0.0)
    assert env.seeds[1:] == [episode_seed(0, 0, episode) for episode in range(4)]
    assert env.seeds[0] == env.seeds[1], "the first shows whether there are masks"


# Environments that are not what Gymnasium expects.


class OldReset(Counter):
    """As of gym 0.21: no seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class BareReset(Counter):
    """As of gym 0.25: the observation alone. It has two entries, as (observation, info) has."""

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class BarePairReset(BareReset):
    def look(self) -> Any:
        return tuple(super().look())


class FourStep(Counter):
    """As of gym 0.25: one `done`."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class Spaceless(Counter):
    @property
    def observation_space(self) -> Any:
        raise AttributeError("nobody set it")


class Shaky(Counter):
    """Raises in its third step, which is after the first episode."""

    def step(self, action: Any) -> Any:
        if self.episode == 2:
            raise RuntimeError("the reactor is offline")
        return super().step(action)


def fault_of(env: gymnasium.Env[Any, Any]) -> str:
    with pytest.raises(EnvError) as caught:
        probe("trial", env, seconds=0.0)
    return str(caught.value)


RESET_API = "Gymnasium expects reset(*, seed=None, options=None) to return (observation, info)"
STEP_API = "(observation, reward, terminated, truncated, info)"


def test_a_reset_without_seed() -> None:
    message = fault_of(OldReset())
    assert "Environment 0 raised TypeError in reset()" in message
    assert RESET_API in message


@pytest.mark.parametrize(
    ("kind", "found"),
    [(BareReset, "one ndarray"), (BarePairReset, "2 values (float32, float32)")],
)
def test_a_reset_without_info(kind: type[Counter], found: str) -> None:
    message = fault_of(kind())
    assert f"Environment 0 returned {found} from reset()" in message
    assert RESET_API in message
    assert f"reset(seed={episode_seed(0, 0, 0)})" in message


def test_a_step_of_four_values() -> None:
    message = fault_of(FourStep())
    assert "returned 4 values (ndarray, float, bool, dict) from step()" in message
    assert STEP_API in message
    assert f"reset(seed={episode_seed(0, 0, 0)}), action " in message


def test_a_step_of_four_values_within_gymnasiums_wrappers() -> None:
    message = fault_of(gymnasium.wrappers.TimeLimit(FourStep(), 5))
    assert "raised ValueError in step(): not enough values to unpack" in message
    assert STEP_API in message


def test_an_unpacking_of_the_environments_own_brings_no_advice() -> None:
    class Clumsy(Counter):
        def step(self, action: Any) -> Any:
            _, _ = [1, 2, 3]
            return super().step(action)

    message = fault_of(Clumsy())
    assert "too many values to unpack" in message
    assert "Gymnasium expects" not in message


def test_an_environment_without_a_space() -> None:
    message = fault_of(Spaceless())
    assert "AttributeError when asked for its observation_space: nobody set it" in message
    assert "Set self.observation_space" in message
    assert "test_pool_choose.py" in message


def test_an_observation_space_that_is_none() -> None:
    class Nothing(Counter):
        observation_space = None

    with pytest.raises(SpaceError, match="observation is None"):
        probe("nothing", Nothing())


def test_raising_in_a_later_episode_of_the_probe() -> None:
    message = fault_of(Shaky(length=1))
    assert "Environment 0 raised RuntimeError in step(): the reactor is offline" in message
    assert f"reset(seed={episode_seed(0, 0, 1)}), action " in message
    assert "test_pool_choose.py" in message


def test_leaving_in_the_probe() -> None:
    class Leaver(Counter):
        def reset(self, **options: Any) -> Any:
            raise SystemExit(0)

    assert "Environment 0 raised SystemExit in reset(): 0" in fault_of(Leaver())


class Frail(Counter):
    """Raises at its hundredth step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 100:
            raise RuntimeError("not today")
        return super().step(action)


def test_what_fails_now_and_then_is_timed_until_it_does() -> None:
    env = Frail()
    assert probe("Frail", env).step_wall_s > 0
    assert env.steps == 100


def test_without_time_to_spend_three_steps_are_tried() -> None:
    env = Frail()
    probe("Frail", env, seconds=0.0)
    assert env.steps == 3


class Cut(Counter):
    """Every other step has its episode cut off, from the first on; it takes a tenth of a second."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps % 2:
            time.sleep(0.1)
            raise EpisodeCutError("no answer")
        return super().step(action)


def test_episodes_that_are_cut_off_are_not_timed() -> None:
    env = Cut()
    assert probe("cut", env, seconds=0.0).step_wall_s < 0.05
    assert env.steps == 6


def test_where_all_episodes_are_cut_off_the_probe_ends() -> None:
    class Away(Counter):
        def step(self, action: Any) -> Any:
            raise EpisodeCutError("no answer")

    with pytest.raises(EpisodeCutError, match="no answer"):
        probe("away", Away(), seconds=0.0)


# Real environments, tried and chosen for.


class Worker(Counter):
    """Keeps a core busy for a millisecond a step."""

    def step(self, action: Any) -> Any:
        ends = time.thread_time() + 1e-3
        while time.thread_time() < ends:
            pass
        return super().step(action)


class Sleeper(Counter):
    def step(self, action: Any) -> Any:
        time.sleep(0.05)
        return super().step(action)


class AsyncSleeper(AsCoroutines):
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0.05)
        return await super().step(action)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make_env", "pool", "waits"),
    [
        (lambda: gymnasium.make("CartPole-v1"), "inline", "no"),
        (Worker, "process", "no"),
        (Sleeper, "io", "in threads"),
        (lambda: AsyncSleeper(Counter), "io", "as coroutines"),
    ],
)
def test_what_is_picked_for_an_environment(make_env: Any, pool: str, waits: str) -> None:
    env = as_blocking(make_env())
    choice = choose(probe("tried", env), n_envs=4, cores=2)
    assert (choice.pool, choice.waits) == (pool, waits)
    env.close()


def test_one_whose_core_others_have_does_not_wait() -> None:
    """On a busy machine a step takes longer than its work, without giving its core away."""
    slowed = busy(4e-3)._replace(step_cpu_s=1e-3)
    assert slowed.waits
    assert not slowed._replace(rests=0.0).waits
    assert slowed._replace(rests=1.0).waits
    assert choose(slowed._replace(rests=0.0), n_envs=8, cores=4).pool == "process"
    assert slowed._replace(rests=0.0).step_s == 1e-3
    assert slowed._replace(rests=1.0).step_s == 4e-3
    cheap = busy(5e-6)._replace(step_wall_s=1e-3, rests=0.0)
    assert choose(cheap, n_envs=8, cores=8).pool == "inline"


@pytest.mark.parametrize(
    ("step_s", "spread_s", "uneven"),
    [(1e-5, 5e-4, False), (2e-3, 8.7e-3, True), (2e-3, 5e-3, False), (1e-5, 2e-3, True)],
)
def test_steps_are_uneven_where_some_take_many_times_as_long(
    step_s: float, spread_s: float, uneven: bool
) -> None:
    """The second is one step of twenty that takes 40 ms. Short ones wander, which is no matter."""
    probe = Probe(spec_of(Counter()), step_s, step_s, False, spread_s)
    assert probe.uneven is uneven


class Dawdles(Counter):
    """Takes a quarter of a second a step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.25)
        return super().step(action)


def test_one_that_takes_long_to_be_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_LONG_S", 0.1)
    with pytest.warns(UserWarning, match=r"Dawdles is still being tried, after 0\.1 s: .* Ctrl-C"):
        probe("Dawdles", Dawdles(), 0.0)


class ClosesBadly(Counter):
    def close(self) -> None:
        raise OSError("the door is stuck")


def test_one_that_fails_to_close_is_told_of_and_used() -> None:
    with (
        pytest.warns(UserWarning, match=r"Bad raised OSError in close\(\): the door is stuck\."),
        choosing.closing("Bad", ClosesBadly()) as env,
    ):
        assert probe("trial", env, 0.0).spec == spec_of(Counter())
    with InlinePool(ClosesBadly, spec_of(Counter()), 2) as pool:
        pool.reset(0)


@pytest.mark.filterwarnings("error")
def test_one_that_is_quick_to_try_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_LONG_S", 20.0)
    threads = threading.active_count()
    probe("Counter", Counter(), 0.0)
    deadline = time.monotonic() + 5.0
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads, "nobody waits to tell of it"
