"""Whether overlapping pays, on clocks that the test turns; and overlapped runs from end to end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.config import resolve
from stoker.errors import EnvError
from stoker.monitor.phases import PhaseClock
from stoker.runs import checkpoint as checkpoints
from stoker.train.overlap import Decision, OverlapTrial
from stoker.train.progress import Progress
from stoker.train.start import Audience, resume, train

Run = Callable[..., subprocess.CompletedProcess[str]]


class Bench:
    """A trial on a collector that only says whether it is ahead."""

    def __init__(self) -> None:
        self.collector: Any = SimpleNamespace(ahead=False)
        self.clock, self.collect_clock = PhaseClock(), PhaseClock()
        self.trial = OverlapTrial(self.collector, self.clock, self.collect_clock)

    def iterate(self, collect: float, learn: float, waited: float) -> Decision | None:
        """An iteration in which collecting took so long, of which the learner saw `waited`."""
        for phase, share in (("inference", 0.25), ("env", 0.5), ("store", 0.25)):
            self.collect_clock.total[phase] += share * collect
        self.clock.total["update"] += learn
        self.clock.total["wait"] += waited
        for clock in (self.clock, self.collect_clock):
            clock.total["save"] += 1000.0  # what is neither does not count
        return self.trial.consider()

    def in_step(self, collect: float, learn: float) -> Decision | None:
        assert not self.collector.ahead
        return self.iterate(collect, learn, waited=collect)

    def until_predicted(self, collect: float, learn: float) -> Decision | None:
        """The first iteration warms up, and takes its time; then two are measured."""
        assert self.in_step(500.0, 70.0) is None
        assert self.in_step(collect - 0.25, learn + 0.25) is None
        return self.in_step(collect + 0.25, learn - 0.25)


def test_overlapping_is_predicted_from_two_iterations_in_step_and_switched_to() -> None:
    bench = Bench()
    decision = bench.until_predicted(collect=2.0, learn=1.0)
    assert decision is not None
    assert decision[:2] == ("collect", "overlapped")
    assert "collecting takes 2 s and learning 1 s an iteration" in decision.why
    assert "at best 1.50 times as fast" in decision.why
    assert bench.collector.ahead


def test_a_pair_that_the_clocks_began_anew_in_is_measured_anew() -> None:
    bench = Bench()
    assert bench.in_step(500.0, 70.0) is None
    assert bench.in_step(9.0, 9.0) is None
    for clock in (bench.clock, bench.collect_clock):
        clock.restart()
    bench.trial.begin_anew()
    decision = bench.until_predicted(collect=2.0, learn=1.0)
    assert decision is not None
    assert "collecting takes 2 s and learning 1 s an iteration" in decision.why


@pytest.mark.parametrize(("collect", "learn"), [(10.0, 0.4), (0.3, 8.0)])
def test_where_one_side_takes_nearly_all_the_time_it_stays_in_step(
    collect: float, learn: float
) -> None:
    bench = Bench()
    decision = bench.until_predicted(collect, learn)
    assert decision is not None
    assert decision[:2] == ("collect", "in step")
    assert "would bring little" in decision.why
    for _ in range(10):
        assert bench.in_step(1.0, 1.0) is None
    assert not bench.collector.ahead


def test_it_looks_back_and_keeps_what_was_quicker() -> None:
    bench = Bench()
    bench.until_predicted(collect=2.0, learn=1.0)
    assert bench.iterate(2.0, 1.0, waited=99.0) is None  # changes over, and does not count
    assert bench.iterate(2.0, 1.0, waited=0.5) is None
    decision = bench.iterate(2.0, 1.0, waited=1.5)
    assert decision is not None
    assert decision[:2] == ("collect", "overlapped")
    assert "took 3 s in step, 2 s overlapped: 1.50 times as fast" in decision.why
    assert bench.collector.ahead
    for _ in range(10):
        assert bench.iterate(2.0, 1.0, waited=50.0) is None
    assert bench.collector.ahead


@pytest.mark.parametrize("learn", [1.95, 2.5])
def test_it_goes_back_where_that_was_not_quicker(learn: float) -> None:
    """Both sides want the same cores: each takes longer while the other runs."""
    bench = Bench()
    bench.until_predicted(collect=2.0, learn=1.0)
    for _ in range(2):
        assert bench.iterate(3.0, learn, waited=1.0) is None
    decision = bench.iterate(3.0, learn, waited=1.0)
    assert decision is not None
    assert decision[:2] == ("collect", "in step")
    assert f"took 3 s in step, {learn + 1:.3g} s overlapped, so it goes back" in decision.why
    assert not bench.collector.ahead
    for _ in range(10):
        assert bench.in_step(2.0, 1.0) is None


_CARTPOLE = "train --env CartPole-v1 --n-envs 4 --n-steps 64 --batch-size 64 --device cpu"


def measured(run: Path) -> list[dict[str, Any]]:
    """What was logged of every iteration."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "time/iterations" in line]


def test_an_overlapped_run_writes_its_lag_and_what_its_thread_did(
    stoker: Run, tmp_path: Path
) -> None:
    more = "--timesteps 4096 --pool process --n-workers 2 --collect overlap --eval-episodes 0"
    ended = stoker(*_CARTPOLE.split(), *more.split(), "--run-name", "ahead")
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    lines = measured(tmp_path / "runs" / "ahead")
    dropped = [line["lag/dropped"] for line in lines]
    assert dropped == sorted(dropped)
    assert len(lines) >= 16
    assert lines[-1]["env_steps"] >= 4096
    for name in ("lag/mean", "lag/max"):
        assert [line[name] for line in lines[:15]] == [0.0] + [1.0] * 14, name
    for phase in ("inference", "env", "store"):
        assert lines[0][f"phase/collect_{phase}"] > 0.0
    for line in lines:
        assert line["phase/wait"] >= 0.0
        assert "phase/env" not in line  # that is the other thread's
    status = json.loads((tmp_path / "runs" / "ahead" / "status.json").read_text())
    assert status["state"] == "finished"
    assert 0.0 < status["overlap_efficiency"] <= 1.0


def test_a_run_in_step_has_no_second_thread_to_report(stoker: Run, tmp_path: Path) -> None:
    more = "--timesteps 1024 --pool process --n-workers 2 --collect step --eval-episodes 0"
    ended = stoker(*_CARTPOLE.split(), *more.split(), "--run-name", "turns")
    assert ended.returncode == 0, ended.stderr
    for line in measured(tmp_path / "runs" / "turns"):
        assert line["lag/max"] == 0.0
        assert not [name for name in line if name.startswith("phase/collect_")]
        assert "lag/dropped" not in line
        assert line["phase/env"] > 0.0


def test_left_to_itself_it_measures_decides_and_says_so(tmp_path: Path) -> None:
    told: list[Decision] = []

    class Listener(Audience):
        def progresses(self, progress: Progress) -> None:
            if progress.decision is not None:
                told.append(progress.decision)

    settings = {
        "env": "CartPole-v1",
        "device": "cpu",
        "n_envs": 2,
        "n_steps": 32,
        "batch_size": 32,
        "pool": "process",
        "n_workers": 1,
        "timesteps": 640,
        "eval_episodes": 0,
        "runs_dir": str(tmp_path),
    }
    outcome = train(resolve(settings), audience=Listener())
    assert outcome.state == "finished"
    assert 1 <= len(told) <= 2
    assert all(decision.what == "collect" for decision in told)
    if told[0].chosen == "in step":
        assert len(told) == 1
    (run,) = tmp_path.iterdir()
    lags = [line["lag/max"] for line in measured(run)]
    assert lags[:3] == [0.0] * 3
    assert set(lags) <= {0.0, 1.0}
    assert (1.0 in lags) == (told[0].chosen == "overlapped")


def test_an_environment_that_fails_in_an_overlapped_run_leaves_the_last_whole_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fail").touch()
    settings = {
        "env": "tasks:Failing",
        "device": "cpu",
        "n_steps": 64,
        "batch_size": 64,
        "pool": "inline",
        "collect": "overlap",
        "max_faults": 0,
        "timesteps": 2048,
        "eval_episodes": 0,
        "runs_dir": str(tmp_path / "runs"),
        "run_name": "failing",
    }
    with pytest.raises(EnvError, match="out of ideas"):
        train(resolve(settings))
    run = tmp_path / "runs" / "failing"
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    _, saved = checkpoints.load_newest(run / "checkpoints")
    assert saved.state["counters"]["env_steps"] == 1472  # it fails at step 1,496
    (tmp_path / "fail").unlink()
    assert resume(run).env_steps == 2048
