"""`stoker check`: environments of either kind, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import main

THEIRS = """
import torch
from stoker.envs.tensor.cart_pole import CartPole

class Slow(CartPole):
    def step(self, state, action, rng):
        if state["motion"].max() > 100:
            pass
        return super().step(state, action, rng)

class Wrong(CartPole):
    def observe(self, state):
        return state["motion"].double()
"""


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_tensors.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["check", *words, "--device", "cpu"])
    said = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, said.out, said.err


def test_a_tensor_environment_that_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "tensor/CartPole-v1")
    assert code == 0
    assert out.startswith("tensor/CartPole-v1 steps as it should. pool: tensor")


def test_one_that_is_slow_is_told_so_with_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "their_tensors:Slow")
    assert code == 0
    assert 'slow: their_tensors.py, line 7 (if state["motion"].max() > 100:) decides in' in out


def test_one_that_is_wrong_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "their_tensors:Wrong", "--json")
    assert code == 1
    (problem,) = json.loads(out)["wrong"]
    assert "What observe gives is of float64; expected float32" in problem


def test_an_ordinary_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "CartPole-v1", "--n-envs", "1", "--json")
    assert code == 0
    assert json.loads(out)["pool"] == "inline"


def test_one_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = called(capsys, "tensor/Cartpole-v1")
    assert code == 2
    assert "Did you mean tensor/CartPole-v1" in err
    assert called(capsys, "their_tensors:Slow", "--env-kwargs", "{speed: 3}")[0] == 2


def test_none_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = called(capsys, "CartPole-v1", "--n-envs", "0")
    assert code == 2
    assert "n_envs is 0; it must be 1 or more." in said
