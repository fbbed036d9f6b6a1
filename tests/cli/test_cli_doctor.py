"""`stoker doctor`: one strict object, sentences for mistakes, and no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.runs.strict_json import loads
from stoker.tune import compose, pieces

SMALL = (
    *("--env", "CartPole-v1", "--n-steps", "16", "--batch-size", "16", "--network-arch", "8"),
    *("--device", "cpu", "--timesteps", "2k"),
)


@pytest.fixture(autouse=True)
def in_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "_MODE_S", 0.05)
    monkeypatch.setattr(pieces, "_EACH_S", 0.0)
    monkeypatch.setattr(pieces, "_ENV_S", 0.01)
    monkeypatch.chdir(tmp_path)


def called(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["doctor", *words])
    said = capfd.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, said.out, said.err


def test_all_of_it_is_one_strict_object(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = called(capfd, *SMALL, "--json")
    found = loads(out)
    assert code == 0
    assert sum(found["shares"].values()) == pytest.approx(1.0, abs=0.01)
    assert found["predicted_wall_s"].keys() == {"2000", "100000", "500000", "1000000"}
    assert found["predicted_sps"] == pytest.approx(2000 / found["predicted_wall_s"]["2000"])
    assert found["ceiling"] == found["ceilings"][found["limit"]] > found["predicted_sps"]
    assert all(each["gain"] >= 1.05 and each["sps"] for each in found["advice"])
    assert all(each["sentence"] for each in found["findings"])
    assert found["probes"]["step"]["cpu_s"] > 0
    assert found["memory"]["total"] < found["memory"]["free"]
    assert list(tmp_path.iterdir()) == []


def test_a_reader_is_told_how_long_it_takes_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capfd, *SMALL)
    assert code == 0
    assert "steps/s; steps: 2,000 in" in out
    assert "Most time goes to" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env", "CartPole-v7"), "CartPole-v7"),
        (("--preset", "hevy"), "There is no preset 'hevy'. Did you mean heavy?"),
        (("--env", "CartPole-v1", "--batch-size", "7"), "batch_size 7 does not divide"),
    ],
)
def test_a_mistake_is_a_sentence(
    capfd: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, out, error = called(capfd, *words, "--device", "cpu")
    assert code != 0
    assert out == ""
    assert said in error
    assert "Traceback" not in error
