"""Which pool, and why."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pool_envs import Counter, Wanderer

from stoker.pools.choose import HANDOVER_PER_WORKER_S, HANDOVER_S, choose, probe


def test_cheap_steps_stay_inline() -> None:
    choice = choose(step_wall_s=5e-6, n_envs=8, cores=8)
    assert (choice.pool, choice.n_workers) == ("inline", 0)


def test_dear_steps_of_many_go_to_processes() -> None:
    choice = choose(step_wall_s=1e-3, n_envs=16, cores=8)
    assert (choice.pool, choice.n_workers) == ("process", 8)


@pytest.mark.parametrize("pool", ["inline", "process"])
def test_the_reason_says_the_figures(pool: str) -> None:
    step = {"inline": 4e-6, "process": 1e-3}[pool]
    choice = choose(step_wall_s=step, n_envs=16, cores=4)
    workers_take = 4 * step + HANDOVER_S + 4 * HANDOVER_PER_WORKER_S
    assert choice.pool == pool
    assert choice.reason == (
        f"a step takes {step * 1e6:,.0f} us: 16 one after the other {16 * step * 1e3:.2f} ms, in "
        f"4 worker processes {workers_take * 1e3:.2f} ms"
    )


def test_one_environment_gains_nothing_from_a_worker() -> None:
    assert choose(step_wall_s=0.1, n_envs=1, cores=64).pool == "inline"


def test_one_core_gains_nothing_from_a_worker() -> None:
    assert choose(step_wall_s=0.01, n_envs=8, cores=1).pool == "inline"


@pytest.mark.parametrize(
    ("n_envs", "cores", "n_workers", "expected"), [(4, 16, 0, 4), (16, 8, 3, 3), (4, 2, 9, 4)]
)
def test_workers_are_those_asked_for_else_the_cores_and_no_more_than_environments(
    n_envs: int, cores: int, n_workers: int, expected: int
) -> None:
    assert choose(0.01, n_envs, cores, n_workers).n_workers == expected


def test_the_dearer_a_step_the_sooner_processes_win() -> None:
    picks = [choose(step, n_envs=8, cores=8).pool for step in (1e-6, 1e-5, 1e-4, 1e-3)]
    assert picks == sorted(picks), "inline, then process, and never back"
    assert {picks[0], picks[-1]} == {"inline", "process"}


class Waiter(Counter):
    """Waits ten milliseconds a step, and spends none of them on the processor."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


def test_a_probe_times_steps_and_describes() -> None:
    found = probe("waiter", Waiter(), seconds=0.1)
    assert found.spec.name == "waiter"
    assert 0.01 <= found.step_wall_s < 0.5
    assert found.step_cpu_s < 0.5 * found.step_wall_s


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
