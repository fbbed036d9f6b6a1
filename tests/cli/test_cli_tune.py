"""`stoker tune`: a table or one strict object, and a preset that training then uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.cli.train import parse_train
from stoker.runs.strict_json import loads
from stoker.tune import pieces, search, tuning

SMALL = (
    *("--env", "CartPole-v1", "--n-steps", "16", "--batch-size", "16", "--network-arch", "8"),
    *("--device", "cpu", "--pool", "inline"),
)


@pytest.fixture(autouse=True)
def in_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_EACH_S", 0.0)
    monkeypatch.setattr(pieces, "_ENV_S", 0.01)
    monkeypatch.setattr(tuning, "_BASE_S", 0.05)
    monkeypatch.setattr(search, "SECONDS", (0.02, 0.02, 0.02))
    monkeypatch.setattr(search, "_MOST_FIRST", 2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def called(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["tune", *words])
    said = capfd.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, said.out, said.err


def test_all_of_it_is_one_strict_object(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = called(capfd, *SMALL, "--json")
    found = loads(out)
    assert code == 0
    assert found["best"] == found["trials"][0]["settings"]
    assert found["gain"] >= 1.0
    assert all(trial["predicted"] > 0 and trial["measured"] > 0 for trial in found["trials"])
    assert Path(found["preset"]).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    config, _ = parse_train(["--env", "CartPole-v1", "--preset", "auto", "--device", "cpu"])
    assert (config.ppo.n_steps, config.network.network_arch) == (16, (8,))
    assert config.env.pool == found["best"]["pool"]
    assert config.compute.torch_threads == found["best"]["torch_threads"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--until-reward", "nan"], 2, "until_reward is nan; it must be a number"),
        (
            ["--until-reward", "900", "--timesteps", "128"],
            1,
            "No candidate came to a mean reward of 900",
        ),
    ],
)
def test_a_reward_that_nobody_comes_to_is_no_success(
    words: list[str], code: int, says: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found, _, said = called(capfd, *SMALL, *words)
    assert found == code
    assert says in " ".join(said.split())
    assert not (tmp_path / "home").exists()


def test_what_cannot_be_kept_is_shown_all_the_same(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    code, out, said = called(capfd, *SMALL, "--json")
    assert code == 1
    assert loads(out)["preset"] is None
    assert "could not be kept for --preset auto" in " ".join(said.split())


def test_a_reader_sees_predicted_beside_measured(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capfd, *SMALL)
    assert code == 0
    assert "predicted" in out
    assert "measured" in out
    assert "--preset auto" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env", "CartPole-v7"), "CartPole-v7"),
        (("--preset", "hevy"), "There is no preset 'hevy'. Did you mean heavy?"),
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
