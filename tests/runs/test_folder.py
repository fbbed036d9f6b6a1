from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ConfigError, RunError
from stoker.runs.folder import RunFolder
from stoker.runs.strict_json import loads


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "runs", "walker")
    folder.write_config({"env": "Walker", "seed": 3})
    return folder


def test_a_new_run_has_its_folders(run: RunFolder) -> None:
    assert run.name == "walker"
    assert run.checkpoints == run.path / "checkpoints"
    assert run.checkpoints.is_dir()
    assert RunFolder.open(run.path).path == run.path


def test_runs_that_have_no_name_of_their_own_do_not_take_each_others(tmp_path: Path) -> None:
    """Two that begin within a second have the same stem."""
    made = [RunFolder.create_unnamed(tmp_path, "walker-s0").name for _ in range(3)]
    assert made == ["walker-s0", "walker-s0-2", "walker-s0-3"]
    with pytest.raises(RunError, match="cannot be a folder's name"):
        RunFolder.create_unnamed(tmp_path, "../walker")


def test_a_taken_name_says_what_to_do(run: RunFolder) -> None:
    with pytest.raises(RunError, match=r"exists already.*--run-name.*stoker resume walker"):
        RunFolder.create(run.path.parent, "walker")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../escape", "a/b", "/etc", ".hidden", "a\\b", "a\0"]
)
def test_a_name_cannot_leave_the_runs_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="--run-name"):
        RunFolder.create(tmp_path / "runs", name)
    assert not any(tmp_path.iterdir())


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match=r"Cannot make the run folder .*--runs-dir"):
        RunFolder.create(tmp_path / "runs", "walker")


def test_a_missing_run_suggests_the_near_name(run: RunFolder) -> None:
    with pytest.raises(RunError, match=r"There is no run at .*Did you mean .*/walker\?"):
        RunFolder.open(run.path.with_name("wakler"))
    with pytest.raises(RunError, match=r"Runs in .*: walker"):
        RunFolder.open(run.path.with_name("zzz"))
    with pytest.raises(RunError, match="No runs lie in"):
        RunFolder.open(run.path / "nowhere" / "deep")


def test_what_is_no_run_says_what_is_missing(run: RunFolder) -> None:
    (run.path.parent / "empty").mkdir()
    with pytest.raises(RunError, match=r"empty is not a run: it has no config\.yaml"):
        RunFolder.open(run.path.parent / "empty")
    (run.path.parent / "empty" / "config.yaml").write_text("env: Walker")
    with pytest.raises(RunError, match=r"empty is not a run: it has no folder checkpoints"):
        RunFolder.open(run.path.parent / "empty")
    with pytest.raises(RunError, match="is a file; a run is a folder"):
        RunFolder.open(run.path / "config.yaml")


def test_settings_come_back_in_order(run: RunFolder) -> None:
    shared = [64, 64]
    flat = {
        "z": 1,
        "a": 3e-4,
        "network": shared,
        "value_network": shared,
        "none": None,
        "on": "yes",
    }
    run.write_config(flat)
    assert run.read_config() == flat
    assert list(run.read_config()) == list(flat)
    assert "&" not in (run.path / "config.yaml").read_text()


@pytest.mark.parametrize(
    "content",
    [
        b"!!python/object/apply:os.mkdir ['marker']",
        b"a: [",
        b"- 1",
        b"\xff\xfe\x00",
        b"1: 2",
        b"a: &a 1\nb: *a",
        b"[" * 100_000,
        b"a: " + b"x" * 1_000_000,
    ],
)
def test_damaged_settings_are_a_config_error(run: RunFolder, content: bytes) -> None:
    (run.path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"(?s)config\.yaml is damaged: .*Copy config\.yaml from"):
        run.read_config()


def test_missing_settings_are_a_run_error(run: RunFolder) -> None:
    (run.path / "config.yaml").unlink()
    with pytest.raises(RunError, match="No such file"):
        run.read_config()


def test_the_status_is_one_flat_strict_object(run: RunFolder) -> None:
    assert run.read_status() == {}
    run.write_status({"state": "running", "sps": float("nan"), "rollout/ep_rew_mean": 1.5})
    assert run.read_status() == {"state": "running", "sps": None, "rollout/ep_rew_mean": 1.5}
    with pytest.raises(TypeError, match="flat"):
        run.write_status({"gpu": {"busy": 1}})


def test_how_agents_compare_is_strict_json(run: RunFolder) -> None:
    for reward in (float("nan"), 1.5):
        run.write_population({"agents": [{"agent": 0, "reward": reward}]})
        kept = loads((run.path / "population.json").read_bytes())
        assert kept == {"agents": [{"agent": 0, "reward": None if reward != reward else reward}]}


def test_a_run_that_is_gone_is_not_made_anew_for_its_status(run: RunFolder) -> None:
    shutil.rmtree(run.path)
    with pytest.raises(FileNotFoundError):
        run.write_status({"state": "running"})
    assert not run.path.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": NaN}'])
def test_a_damaged_status_is_a_run_error(run: RunFolder, content: str) -> None:
    (run.path / "status.json").write_text(content)
    with pytest.raises(RunError, match=r"status\.json"):
        run.read_status()


def test_on_a_full_disk_the_status_can_still_say_so(small_disk: Any) -> None:
    run = RunFolder.create(small_disk.path, "walker")
    run.write_status({"state": "running", "env_steps": 1})
    small_disk.fill()
    run.write_status({"state": "running", "env_steps": 2, "trouble": "No space left on device."})
    assert run.read_status()["trouble"] == "No space left on device."
    run.write_status({"state": "short"})
    assert run.read_status() == {"state": "short"}
    with pytest.raises(OSError, match="No space left"):
        run.write_status({"state": "x" * 10_000})
    assert loads((run.path / "status.json").read_bytes()) == {"state": "short"}
