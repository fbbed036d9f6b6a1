"""Tuning a small job for real, and to a reward."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config import resolve
from stoker.config.schema import Config
from stoker.tune import reach, search, tuning
from stoker.tune.search import Trial
from stoker.tune.tuning import Reaching, Workbench, tune, written

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "n_envs": 2,
    "n_steps": 16,
    "batch_size": 16,
    "n_epochs": 1,
    "network_arch": (8,),
    "device": "cpu",
    "pool": "inline",
}


@pytest.fixture(autouse=True)
def in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_BASE_S", 0.05)
    monkeypatch.setattr(search, "SECONDS", (0.02, 0.02, 0.02))
    monkeypatch.setattr(search, "_MOST_FIRST", 3)
    monkeypatch.setattr("stoker.train.devices.usable_cores", lambda: 2)


def test_the_first_candidate_is_the_job_as_it_is() -> None:
    bench = Workbench(resolve(SMALL | {"n_workers": 0}), allow_learning=False)
    base, *others = bench.candidates
    assert base == {"pool": "inline", "n_workers": 0, "collect": "step", "torch_threads": 1}
    assert base not in others
    assert all(sps > 0 for sps in bench.predictions)
    assert bench.sps(0, 0.01) > 0


def test_what_does_not_fit_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    most = {"n_envs": 0}

    def free(device: Any) -> int:
        return most["n_envs"] or 2**34

    monkeypatch.setattr("stoker.train.devices.free_memory", free)
    all_of_them = len(Workbench(resolve(SMALL), allow_learning=False).candidates)
    bench = Workbench(resolve(SMALL), allow_learning=False)
    most["n_envs"] = 1  # not a byte: whatever fits is refused
    assert bench._with_base(bench.candidates[1:]) == [bench.candidates[0]]
    assert all_of_them == len(bench.candidates) > 1


def test_a_search_says_what_it_measured_and_keeps_the_best() -> None:
    told: list[str] = []
    found = tune(resolve(SMALL), tell=told.append)
    measured = [trial.measured for _, trial in found.trials]
    assert measured == sorted(measured, reverse=True)
    assert found.best == found.trials[0][0]
    assert found.config.env.pool == found.best["pool"]
    assert found.gain == pytest.approx(measured[0] / found.base.measured)
    assert found.considered > len(found.trials)
    assert not found.interrupted
    assert sum("steps/s" in line for line in told) >= len(found.trials)


def test_ctrl_c_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([100.0, 300.0])

    def sps(bench: Workbench, number: int, seconds: float) -> float:
        try:
            return next(scores)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(Workbench, "sps", sps)
    found = tune(resolve(SMALL))
    assert found.interrupted
    assert found.gain == pytest.approx(3.0)
    assert found.base == Trial(0, found.base.predicted, 100.0)


def test_before_anything_is_measured_ctrl_c_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def sps(bench: Workbench, number: int, seconds: float) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workbench, "sps", sps)
    with pytest.raises(KeyboardInterrupt):
        tune(resolve(SMALL))


def test_a_reward_is_reached_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(SMALL | {"timesteps": 2000})
    took = reach.seconds_to(9.0, config, seed=1)  # a random policy has 20 or so
    assert took is not None
    assert took > 0
    assert reach.seconds_to(499.0, config, seed=1) is None
    assert reach.seconds_to(499.0, config, seed=1, most_s=0.0) is None


def test_reaching_gives_up_on_who_is_slower_and_takes_another_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, float]] = []
    answers = iter([4.0, None, 2.0])

    def seconds_to(reward: float, config: Config, seed: int, most_s: float) -> float | None:
        asked.append((seed, most_s))
        return next(answers)

    monkeypatch.setattr(tuning, "seconds_to", seconds_to)
    bench = Workbench(resolve(SMALL | {"seed": 7}), allow_learning=False)
    score = Reaching(bench, 100.0)
    assert [score(0, 1.0), score(1, 1.0), score(0, 2.0)] == [0.25, 0.0, 0.5]
    assert asked == [(7, float("inf")), (7, 6.0), (8, 6.0)]


def test_candidates_are_written_as_flags() -> None:
    assert written({"n_envs": 8, "pool": "inline"}) == "--n-envs 8 --pool inline"
