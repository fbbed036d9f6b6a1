"""Rehearsals: the real parts at work, and nothing left of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from stoker.config import resolve
from stoker.config.schema import Config
from stoker.train.overlap import OverlapTrial
from stoker.train.session import LOGS_APART_S
from stoker.tune.rehearsal import Rehearsal, _enough

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "n_envs": 2,
    "n_steps": 16,
    "batch_size": 16,
    "n_epochs": 1,
    "network_arch": (8,),
    "device": "cpu",
}


def small(**settings: Any) -> Config:
    return resolve(SMALL | settings)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_iterations_are_made_and_nothing_is_left(elsewhere: Path) -> None:
    with Rehearsal(small(pool="inline")) as rehearsal:
        rehearsal.warm_up()
        job, walls, times = rehearsal.measure(0.0, times=5)
        assert len(walls) == 5
        assert times == [1] * 5
        assert job.steps == 5 * 32
        assert sum(walls) <= job.wall_s
        assert {"env", "inference", "store", "update", "log"} <= job.phases.keys()
        assert rehearsal.save_s() > 0
        assert any(elsewhere.rglob("checkpoints/*"))
    assert list(elsewhere.iterdir()) == []


def test_iterations_that_are_many_a_second_are_logged_as_seldom_as_in_the_run(
    elsewhere: Path,
) -> None:
    """A log waits for the device: one an iteration would be measured in place of the run."""
    with Rehearsal(small(env="tensor/CartPole-v1")) as rehearsal:
        job, walls, times = rehearsal.measure(0.0, times=3)
        assert rehearsal.warm_up() < sum(walls)
    assert min(walls[1:]) >= LOGS_APART_S
    assert sum(times) > 3 * len(times)
    assert job.steps == 32 * sum(times)


def test_the_settings_are_those_of_the_job(elsewhere: Path) -> None:
    with Rehearsal(small(pool="auto", n_envs=1, timesteps=777, log_every=9)) as rehearsal:
        resolved = rehearsal.resolved
    assert resolved.env.pool == "inline"
    assert (resolved.run.timesteps, resolved.run.log_every) == (777, 9)


def test_overlapping_is_measured_beside_learning(elsewhere: Path) -> None:
    with Rehearsal(small(pool="process", n_workers=1)) as rehearsal:
        in_step = rehearsal.measure(0.0, times=2).job
        rehearsal.overlap()
        overlapped = rehearsal.measure(0.0, times=3).job
    assert in_step.collecting is None
    assert overlapped.collecting is not None
    assert in_step.worked_s is not None
    assert 0 < in_step.worked_s < in_step.wall_s  # of these iterations alone
    assert overlapped.steps == 3 * 32


def test_what_is_tried_is_closed_at_the_end(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    monkeypatch.setattr(OverlapTrial, "close", lambda trial: closed.append(trial))
    with Rehearsal(small(pool="process", n_workers=1)) as rehearsal:
        assert rehearsal.parts.trial is None
        assert closed == []
    assert closed == [rehearsal.trial]


def test_time_alone_ends_it_where_iterations_wander() -> None:
    steady, wandering = [0.5] * 9, [0.1, 1.9] * 4
    assert _enough(steady, most_s=60.0)
    assert not _enough(steady[:4], most_s=60.0)
    assert not _enough(wandering, most_s=60.0)
    assert _enough(wandering, most_s=8.0)
