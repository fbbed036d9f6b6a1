"""The ledger: every place is done once, whoever is killed, and whoever else takes part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from stoker.config import resolve
from stoker.errors import ConfigError
from stoker.sweep.ledger import Ledger, Taken, hidden
from stoker.sweep.plan import Plan, Pruner
from stoker.sweep.space import understand

SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "n_epochs": [1, 2, 3]}


def plan(
    trials: int,
    pruner: Pruner = "none",
    seeds: int = 1,
    agents: int = 1,
    space: Mapping[str, Any] = SPACE,
) -> Plan:
    base = resolve({"timesteps": 1000})
    spreads = understand(space, base)
    return Plan(base.flat(), spreads, tuple(range(seeds)), None, trials, pruner, agents)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


def take(ledger: Ledger, by: str = "me") -> Taken:
    taken = ledger.take(by)
    assert taken is not None
    return taken


def done_places(ledger: Ledger) -> list[int | None]:
    return sorted(row.place or 0 for row in ledger.rows() if row.state in ("complete", "pruned"))


def finish(ledger: Ledger) -> None:
    while (taken := ledger.take("me")) is not None:
        ledger.complete(taken, {0: 1.0}, [10])


def test_a_plan_is_the_same_when_it_is_read(url: str) -> None:
    made = plan(3, "median", seeds=2)
    Ledger.begin(url, "s", made, 3)
    assert Ledger.load(url, "s").plan == made


def test_every_place_is_taken_once(url: str) -> None:
    first = Ledger.begin(url, "s", plan(5), 3)
    second = Ledger.load(url, "s", 3)
    taken = [take(first), take(second), take(first), take(second), take(first)]
    assert first.take("me") is second.take("me") is None
    assert sorted(each.place for each in taken) == [0, 1, 2, 3, 4]
    for each in taken:
        first.complete(each, {0: 1.0}, [10])
    assert done_places(second) == [0, 1, 2, 3, 4]


def test_what_was_killed_is_run_again_with_the_same_settings(url: str) -> None:
    ledger = Ledger.begin(url, "s", plan(2), restarts=2)
    lost, other = take(ledger), take(ledger)
    ledger.complete(other, {0: 1.0}, [10])
    for _ in range(2):
        ledger.lose(lost, "killed by SIGKILL")
        again = take(ledger)
        assert (again.place, again.drawn) == (lost.place, lost.drawn)
        assert again.number > lost.number
        lost = again
    ledger.lose(lost, "killed by SIGKILL")  # once more than there are restarts
    redrawn = take(ledger)
    assert redrawn.place == lost.place
    assert redrawn.drawn != lost.drawn
    ledger.prune(redrawn, "pruned")
    assert ledger.take("me") is None
    assert done_places(ledger) == [0, 1]


def test_what_failed_is_drawn_anew(url: str) -> None:
    ledger = Ledger.begin(url, "s", plan(1), 3)
    failed = take(ledger)
    ledger.fail(failed, "it left with 1")
    again = take(ledger)
    assert again.place == failed.place
    assert again.drawn != failed.drawn


def test_a_sweep_that_was_killed_goes_on_with_what_it_ran(url: str) -> None:
    killed = Ledger.begin(url, "s", plan(4), 3)
    killed.complete(take(killed), {0: 1.0}, [10])
    lost = take(killed, by="a:runs/s")
    others = take(killed, by="b:runs/s")
    ledger = Ledger.load(url, "s", 3)
    assert ledger.mend(by="a:runs/s") == 1
    ledger.add_places()
    again = [take(ledger), take(ledger)]
    assert lost.drawn in [each.drawn for each in again]
    for each in [*again, others]:
        ledger.complete(each, {0: 1.0}, [10])
    assert ledger.take("me") is None
    assert done_places(ledger) == [0, 1, 2, 3]


def test_one_that_was_killed_before_all_places_were_made_has_them_all(url: str) -> None:
    ledger = Ledger.begin(url, "s", plan(2), 3)
    ledger.extend(5)  # as if it had been killed after that
    ledger.add_places()
    ledger.add_places()
    finish(ledger)
    assert done_places(Ledger.load(url, "s")) == [0, 1, 2, 3, 4]


def test_nobody_runs_a_place_that_another_has(url: str) -> None:
    """Two machines may both have seen that a place was free."""
    ledger = Ledger.begin(url, "s", plan(1), 3)
    study = optuna.load_study(study_name="s", storage=url)
    study.enqueue_trial({}, user_attrs={"place": 0})
    first = take(ledger)
    assert ledger.take("me") is None
    ledger.complete(first, {0: 1.0}, [10])
    assert done_places(ledger) == [0]


def test_what_has_no_heartbeat_is_run_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.sweep.ledger._GRACE_S", 1)
    monkeypatch.setattr("stoker.sweep.ledger.BEAT_S", 1)
    dead, alive = Ledger.begin(url, "s", plan(1), 3), Ledger.load(url, "s", 3)
    lost = take(dead)
    stale = optuna.storages.RDBStorage._get_stale_trial_ids
    monkeypatch.setattr(
        optuna.storages.RDBStorage, "_get_stale_trial_ids", lambda *_: [lost.trial._trial_id]
    )
    alive.beat([])
    monkeypatch.setattr(optuna.storages.RDBStorage, "_get_stale_trial_ids", stale)
    again = take(alive)
    assert again.drawn == lost.drawn
    assert dead.report(lost, 1, 5.0)  # whoever was taken for dead is told to give up
    dead.complete(lost, {0: 9.0}, [10])  # and what it says does not count any more
    alive.complete(again, {0: 1.0}, [10])
    assert done_places(alive) == [0]


def test_a_trial_below_the_median_is_pruned(url: str) -> None:
    ledger = Ledger.begin(url, "s", plan(7, "median"), 3)
    for reward in (10.0, 11.0, 12.0, 13.0, 14.0):
        good = take(ledger)
        assert not any(ledger.report(good, step, reward) for step in range(1, 11))
        ledger.complete(good, {0: reward}, [10])
    bad = take(ledger)
    assert not any(ledger.report(bad, step, 5.0) for step in range(1, 5))  # too soon to tell
    assert ledger.report(bad, 5, 5.0)
    fine = take(ledger)
    assert not ledger.report(fine, 5, 12.5)


def test_a_name_that_is_taken_and_one_that_is_not_there(url: str) -> None:
    Ledger.begin(url, "s", plan(1), 3)
    with pytest.raises(ConfigError, match="has a sweep called s already"):
        Ledger.begin(url, "s", plan(1), 3)
    with pytest.raises(ConfigError, match=r"no sweep called t\. It has s"):
        Ledger.load(url, "t")


@pytest.mark.parametrize(
    "wrong",
    [
        "sqlite:////no/such/folder/study.db",
        "postgresql://me:secret@127.0.0.1:1/sweeps",
        "nonsense",
        "",
    ],
)
def test_a_storage_that_cannot_be_used_is_a_sentence(wrong: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        Ledger.load(wrong, "s")
    assert "secret" not in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_password_is_not_told() -> None:
    assert hidden("postgresql://me:a@b:c@host/db") == "postgresql://me@host/db"
    assert hidden("sqlite:///study.db") == "sqlite:///study.db"
