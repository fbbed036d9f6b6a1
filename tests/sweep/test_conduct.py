"""The conductor, with runs that are made up: what becomes of each trial, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_ledger import plan

from stoker.errors import ConfigError, StokerError
from stoker.jobs.words import Job
from stoker.sweep.conduct import Board, Sweep
from stoker.sweep.course import REWARD
from stoker.sweep.ledger import Ledger
from stoker.train.signals import StopRequest

Say = Callable[[Job], tuple[int, float | None]]
"""The exit code of a run, and the reward that it logs."""


class MadeUp:
    """A run that has logged all and ended when it is first looked at."""

    where = "nowhere"

    def __init__(self, code: int, reward: float | None) -> None:
        self._code, self._reward = code, reward
        self.stopped = False

    def ended(self) -> int | None:
        return 143 if self.stopped else self._code

    def begun(self) -> bool:
        return True

    def news(self) -> Sequence[dict[str, Any]]:
        lines = [{"env_steps": step, "wall_s": 1.0} for step in range(100, 1001, 100)]
        reward = {} if self._reward is None else {REWARD: self._reward}
        return [] if self._code else [line | reward for line in lines]

    def standings(self) -> dict[int, float]:
        return {0: 1.0, 1: 3.0, 2: 10.0, 3: 20.0, 4: 5.0}

    def stop(self) -> None:
        self.stopped = True

    def wait(self, timeout_s: float) -> int:
        return self._code

    def last_lines(self, count: int) -> list[str]:
        return ["error: all wrong."]


class Runs:
    """An engine of `places`, and all that was started."""

    def __init__(self, say: Say, places: int = 1) -> None:
        self._say, self._places = say, places
        self.jobs: list[Job] = []
        self.made: list[MadeUp] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        yield

    def room(self) -> int:
        return self._places

    def start(self, job: Job) -> MadeUp:
        self.jobs.append(job)
        self.made.append(MadeUp(*self._say(job)))
        self._places -= 1
        process = self.made[-1]
        waited = process.ended

        def ended() -> int | None:
            self._places += 1
            return waited()

        process.ended = ended  # type: ignore[method-assign]
        return process


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def says(self, line: str) -> None:
        self.lines.append(line)

    def shows(self, board: Board) -> None:
        assert len(board.running) <= 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.sweep.conduct._EVERY_S", 0.0)


def conduct(folder: Path, runs: Runs, **planned: Any) -> tuple[Ledger, list[str]]:
    url = f"sqlite:///{folder / 'study.db'}"
    ledger, heard = Ledger.begin(url, "s", plan(**planned), 3), Heard()
    Sweep(ledger, runs, folder, "me", heard, StopRequest(None)).run()
    return ledger, heard.lines


def states(ledger: Ledger) -> list[str]:
    return [row.state for row in ledger.rows()]


def test_a_trial_is_the_mean_of_its_seeds(tmp_path: Path) -> None:
    runs = Runs(lambda job: (0, float(job.settings["seed"])))
    ledger, _ = conduct(tmp_path, runs, trials=2, seeds=3)
    assert [job.settings["seed"] for job in runs.jobs] == [0, 1, 2, 0, 1, 2]
    for row in ledger.rows():
        assert (row.state, row.value, row.env_steps) == ("complete", 1.0, 1000)
        assert row.seeds == {"0": 0.0, "1": 1.0, "2": 2.0}
    first, *others = (job.settings["learning_rate"] for job in runs.jobs[:3])
    assert others == [first, first]


def test_two_that_are_killed_are_run_again_and_the_count_is_exact(tmp_path: Path) -> None:
    killed = {1, 3}

    def say(job: Job) -> tuple[int, float]:
        code = -9 if len(runs.jobs) in killed else 0
        return code, 5.0

    runs = Runs(say)
    ledger, lines = conduct(tmp_path, runs, trials=4)
    assert sorted(states(ledger)) == ["complete"] * 4 + ["failed"] * 2
    assert sum("killed by SIGKILL; it is run again" in line for line in lines) == 2
    assert len({job.path for job in runs.jobs}) == 6  # none in a folder that another left


def test_a_trial_without_an_episode_is_pruned_and_counts(tmp_path: Path) -> None:
    ledger, lines = conduct(tmp_path, Runs(lambda _: (0, None)), trials=1)
    assert states(ledger) == ["pruned"]
    assert "no episode ended in its time" in lines[0]


def test_a_trial_that_is_pruned_is_stopped_and_its_other_seeds_are_spared(tmp_path: Path) -> None:
    runs = Runs(lambda _: (0, 10.0 if len(runs.jobs) <= 10 else 1.0))
    ledger, _ = conduct(tmp_path, runs, trials=6, seeds=2, pruner="median")
    assert states(ledger) == ["complete"] * 5 + ["pruned"]
    assert len(runs.jobs) == 11
    assert runs.made[-1].stopped


def test_trials_can_be_agents_of_one_population(tmp_path: Path) -> None:
    """Three trials of two seeds each, in populations of two trials; one agent has no reward."""
    runs = Runs(lambda _: (0, 5.0))
    space = {"learning_rate": {"low": 1e-4, "high": 1e-2}, "ent_coef": [0.0, 0.01]}
    ledger, _ = conduct(tmp_path, runs, trials=3, seeds=2, agents=4, space=space)
    first, second = (job.settings for job in runs.jobs)
    rows = ledger.rows()
    for settings, trials in ((first, rows[:2]), (second, rows[2:])):
        assert settings["population"] == 2 * len(trials)
        for name in space:
            each = [row.drawn[name] for row in trials for _ in range(2)]
            assert settings["vary"][name] == {"each": each}
    assert [row.value for row in rows] == [2.0, 15.0, 2.0]
    assert rows[1].seeds == {"2": 10.0, "3": 20.0}
    assert states(ledger) == ["complete"] * 3


def test_a_population_that_is_killed_is_run_again(tmp_path: Path) -> None:
    runs = Runs(lambda _: (-9 if len(runs.jobs) == 1 else 0, 5.0))
    space: dict[str, Any] = {"learning_rate": {"low": 1e-4, "high": 1e-2}}
    ledger, _ = conduct(tmp_path, runs, trials=3, seeds=1, agents=2, space=space)
    assert sorted(states(ledger)) == ["complete"] * 3 + ["failed"] * 2
    complete = [row.drawn for row in ledger.rows() if row.state == "complete"]
    assert all(row.drawn in complete for row in ledger.rows())
    assert [job.settings["population"] for job in runs.jobs] == [2, 2, 1]
    assert runs.jobs[2].settings["vary"] == {}  # which is for populations


def test_one_failure_is_drawn_anew(tmp_path: Path) -> None:
    runs = Runs(lambda _: (1 if len(runs.jobs) == 1 else 0, 5.0))
    ledger, lines = conduct(tmp_path, runs, trials=2)
    assert sorted(states(ledger)) == ["complete", "complete", "failed"]
    assert "it left with 1" in lines[0]
    assert "  error: all wrong." in lines


def test_many_failures_in_a_row_end_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="5 trials in a row have failed, the last with: error"):
        conduct(tmp_path, Runs(lambda _: (1, None)), trials=9)


def test_a_mistake_in_the_settings_ends_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="A trial could not begin: error: all wrong") as caught:
        conduct(tmp_path, Runs(lambda _: (2, None)), trials=9)
    assert caught.value.exit_code == 2
