"""The comparison with peers: who cannot, what a curve says, and what becomes of a bad child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import comparison
from bench.contest import Entrant, contest, race
from bench.peers import roster
from bench.peers.child import Point, Task, asked, learned, learned_enough
from bench.peers.roster import HOST, MANY, NUMBERS, PEERS, TENSORS, TWO, why_not
from bench.seeds import interval

ROOT = Path(__file__).resolve().parents[2]


def task(**given: object) -> Task:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return asked(words)


def test_every_peer_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "find_spec", lambda name: object())
    cannot = {key: why_not(peer, (HOST, MANY), None) for key, peer in PEERS.items()}
    assert {key for key, reason in cannot.items() if reason} == {"rsl_rl", "elegantrl", "jax"}
    numbers = {key for key, peer in PEERS.items() if why_not(peer, (HOST, NUMBERS), None)}
    assert numbers == {"jax"}
    assert not any(why_not(peer, (TENSORS, TWO), None) for peer in PEERS.values())


def test_a_peer_or_an_environment_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roster, "find_spec", lambda name: None)
    assert "skrl is not installed" in str(why_not(PEERS["skrl"], (TENSORS, TWO), None))
    for key, package in (("elegantrl", "elegantrl"), ("rl_games", "rl-games")):
        said = str(why_not(PEERS[key], (TENSORS, TWO), None))
        assert f"pip install --no-deps {package}" in said
    assert "mujoco is not installed" in str(why_not(PEERS["cleanrl"], (HOST, NUMBERS), "mujoco"))


def test_a_case_that_nobody_can_do_has_a_row_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    rows = list(comparison.compare(comparison.CHEETAH))
    assert [row.peer_name for row in rows] == [peer.name for peer in PEERS.values()]
    assert all("mujoco" in (row.details or {})["cannot"] for row in rows)


def test_what_goes_wrong_in_a_case_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("the machine is on fire")

    monkeypatch.setattr(comparison, "contest", fails)
    work = comparison.CART_POLE
    *_, last = comparison.cases_with("cleanrl")[work.case]()
    assert (last.details or {})["failed"] == "RuntimeError: the machine is on fire"


def test_an_unknown_peer_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "peers", "--peer", "nobody"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "no peer has 'nobody' in its name: sb3, skrl" in ended.stderr


CURVE = [Point(0.0, 100, None), Point(1.0, 200, 20.0), Point(2.0, 300, 480.0)]


def test_a_curve_says_the_reward_after_the_steps_and_when_the_goal_was_reached() -> None:
    found = learned(task(learn_steps=150, goal=475), CURVE)
    assert (found["reward"], found["goal_s"], found["goal_steps"]) == (20.0, 2.0, 300)
    found = learned(task(learn_steps=500, goal=500), CURVE)
    assert (found["reward"], found["goal_s"], found["goal_steps"]) == (None, None, None)


def test_learning_goes_on_until_both_are_had_or_the_time_is_up() -> None:
    assert not learned_enough(task(learn_steps=200, goal=475), CURVE[:2])
    assert learned_enough(task(learn_steps=200, goal=475), CURVE)
    assert not learned_enough(task(learn_steps=400, goal=475), CURVE)
    assert learned_enough(task(learn_steps=400, goal=475, most_s=1.5), CURVE)
    assert learned_enough(task(learn_steps=200), CURVE[:2])


def test_an_interval_is_students() -> None:
    assert interval([1.0]) is None
    assert interval([1.0, 2.0, 3.0]) == [round(2 - 4.303 / 3**0.5, 2), round(2 + 4.303 / 3**0.5, 2)]


SMALL = {"env": "CartPole-v1", "envs": 8, "steps": 64, "executor": "sync", "iterations": 2}


def test_the_single_file_learns_cart_pole_a_little() -> None:
    wanted = {"learn-steps": 12_000, "lr": 3e-3, "most-s": 60}
    entrant = Entrant("CleanRL's recipe", "single_file", {**SMALL, **wanted})
    [result] = race([entrant], at_once=True)
    assert result.failure is None
    assert result.lines[0]["reward"] > 45  # an untrained policy has 20
    assert result.lines[0]["optimiser_steps"] == 16  # 4 epochs of 4 minibatches
    assert result.start_up_s is not None
    assert result.start_up_s > 0


def test_a_child_that_fails_or_hangs_loses_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    quick = {**SMALL, "steps": 16, "iterations": 1, "seconds": 0.1}
    entrants = [
        Entrant("good", "single_file", quick, repeats=2),
        Entrant("bad", "single_file", {**quick, "env": "Nowhere-v0"}, repeats=2),
        Entrant("slow", "single_file", {**quick, "steps": 10**6}, repeats=2, patience_s=3),
    ]
    good, bad, slow = contest(entrants)
    assert len(good.rates) == 2
    assert (good.memory_mb or 0) > 50
    assert "Nowhere-v0" in str(bad.failure)
    assert slow.failure == "it gave no answer within 3 s, and was ended"
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["progress"] for line in said} == {"warm", "measured"}
