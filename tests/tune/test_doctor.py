"""Diagnoses: every kind of pool, and predictions that follow from what was rehearsed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.config import resolve
from stoker.monitor.verdict import Job
from stoker.train.overlap import OverlapTrial
from stoker.train.swap import Built, Swap
from stoker.tune import compose
from stoker.tune.compose import composed
from stoker.tune.doctor import HORIZONS, Diagnosis, diagnose
from stoker.tune.rehearsal import Rehearsed
from stoker.tune.shorten import Shortened
from stoker.types import as_it_is

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "n_envs": 4,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 1,
    "network_arch": (8,),
    "device": "cpu",
}


def diagnosed(**settings: Any) -> Diagnosis:
    found = diagnose(resolve(SMALL | settings))
    assert sum(found.verdict.shares.values()) == pytest.approx(1.0, abs=0.01)
    assert set(HORIZONS) <= found.predicted_wall_s.keys()
    walls = [found.predicted_wall_s[steps] for steps in sorted(found.predicted_wall_s)]
    assert walls == sorted(walls)
    return found


def test_environments_in_the_trainer() -> None:
    found = diagnosed(timesteps=640, pool="inline")
    assert found.predicted_sps == pytest.approx(640 / found.predicted_wall_s[640])
    assert found.pieces.env is not None
    assert found.pieces.env.step_spread_s > 0
    assert set(found.pieces.inference_at) == {1, 4, 8, 16}
    assert set(found.pieces.update_at) == {32}
    assert found.pieces.copy_s is None
    assert found.shortened == 1


def test_environments_in_processes() -> None:
    found = diagnosed(pool="process", n_workers=2)
    assert found.config.env.n_workers == 2
    assert found.verdict.shares["hand-over"] >= 0
    assert {"environments", "inference", "learning"} <= found.verdict.ceilings.keys()


def test_environments_that_are_tensors() -> None:
    found = diagnosed(env="tensor/CartPole-v1")
    assert found.pieces.env is None
    assert set(found.verdict.shares) == {"rollout", "learning", "logging", "other"}


def test_iterations_that_take_long_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.tune.doctor._ITERATION_S", 0.0)
    found = diagnosed(pool="inline")
    assert found.shortened == 2  # 8 steps are left
    assert found.config.ppo.n_steps == 16
    assert found.course.batch == 64


class Scripted:
    """In place of a rehearsal: an iteration of 100 steps takes 5 s in step, or what it is told."""

    def __init__(self, overlapped_s: float) -> None:
        self.resolved = resolve({"n_envs": 10, "n_steps": 10, "batch_size": 10})
        self.trial = OverlapTrial.__new__(OverlapTrial)
        self._wall_s, self._overlapped_s = 5.0, overlapped_s

    def warm_up(self) -> float:
        return 7.0

    def save_s(self) -> float:
        return 0.0

    def overlap(self) -> None:
        self._wall_s = self._overlapped_s

    def measure(self, most_s: float) -> Rehearsed:
        wall, ahead = self._wall_s, self._wall_s != 5.0
        phases = {"wait": wall - 2.0} if ahead else {"env": 3.0}
        collecting = {"env": wall} if ahead else None
        job = Job(
            wall, 100, {**phases, "update": 2.0}, collecting, None, "process", 2, 10, 2, False
        )
        return Rehearsed(job, [wall], [1])


@pytest.mark.parametrize(
    ("overlapped_s", "wall_s", "kept"),
    [(3.0, 7 + 3 * 5 + 97 * 3.0, True), (4.9, 7 + 3 * 5 + 3 * 4.9 + 94 * 5, False)],
)
def test_overlapping_is_kept_where_training_would_keep_it(
    overlapped_s: float, wall_s: float, kept: bool
) -> None:
    rehearsal: Any = Scripted(overlapped_s)
    found = composed(rehearsal, Shortened(rehearsal.resolved, 1, 1.0))
    assert found.course.wall_s(10_000) == pytest.approx(wall_s)
    assert found.steady.overlap_tried != kept
    assert (found.steady.collecting is not None) == kept


def test_overlapping_is_not_even_tried_where_it_would_bring_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compose, "LEAST_GAIN", 2.0)
    rehearsal: Any = Scripted(1.0)
    found = composed(rehearsal, Shortened(rehearsal.resolved, 1, 1.0))
    assert found.course.wall_s(10_000) == pytest.approx(7 + 100 * 5)
    assert not found.steady.overlap_tried


class Swapped(Scripted):
    """Kernels take 40 s to build, in which an iteration takes 10 s, and 1 s after that."""

    def __init__(self, ready: bool) -> None:
        super().__init__(0.0)
        self.trial: Any = Swap.__new__(Swap)
        self.trial.built = Built(lambda *given: None, as_it_is, 40.0, 4.0)
        self.trial.seconds_from_cache = lambda: 10.0
        self.parts = SimpleNamespace(fused=object() if ready else None)

    def until_taken_over(self, most_s: float) -> Rehearsed:
        self._wall_s = 1.0
        return Rehearsed(_learning(40.0, 400), [10.0] * 4, [1] * 4)

    def measure(self, most_s: float) -> Rehearsed:
        return Rehearsed(_learning(self._wall_s, 100), [self._wall_s], [1])


def _learning(wall_s: float, steps: int) -> Job:
    phases = {"env": 0.4 * wall_s, "update": 0.6 * wall_s}
    return Job(wall_s, steps, phases, None, None, "tensor", 0, 10, 2, True)


@pytest.mark.parametrize(
    ("ready", "wall_s"), [(True, 7 + 3 * 5 + 1 * 10 + 96 * 1), (False, 7 + 100 * 5)]
)
def test_kernels_take_over_as_soon_as_a_cache_lets_them(ready: bool, wall_s: float) -> None:
    """What the doctor built, the run that follows does not build again."""
    rehearsal: Any = Swapped(ready)
    found = composed(rehearsal, Shortened(rehearsal.resolved, 1, 1.0))
    assert found.course.wall_s(10_000) == pytest.approx(wall_s)
