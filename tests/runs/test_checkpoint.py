from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.errors import CheckpointError
from stoker.runs import checkpoint
from stoker.runs.checkpoint import Checkpoint
from stoker.runs.temporary import temporary_sibling

FILES = ("tensors.safetensors", "state.json", "config.yaml")


def checkpoint_at(step: int, size: int = 4) -> Checkpoint:
    """A checkpoint in which every value is the step."""
    return Checkpoint({"w": torch.full((size,), float(step))}, {"env_steps": step}, {"seed": step})


def saved_at(parent: Path, *steps: int) -> list[Path]:
    """Checkpoints at `steps` in `parent`."""
    folders = [parent / checkpoint.step_name(step) for step in steps]
    for step, folder in zip(steps, folders, strict=True):
        checkpoint.save(folder, checkpoint_at(step))
    return folders


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """The content of every file under `folder` by its path, None for what is no file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_saved_checkpoint_comes_back_with_every_dtype(tmp_path: Path) -> None:
    tensors = {
        "float": torch.randn(3, 4),
        "bf16": torch.randn(5).bfloat16(),
        "uint8": torch.arange(250, 256, dtype=torch.uint8),
        "int64": torch.tensor([2**62, -1]),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "empty too": torch.zeros(0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    state = {"env_steps": 12, "rng": 2**127 + 1, "names": ["a", "b"], "none": None, "tiny": 5e-324}
    config = {"env": "CartPole-v1", "learning_rate": 3e-4, "network": [64, 64], "env_kwargs": {}}
    checkpoint.save(tmp_path / "step", Checkpoint(tensors, state, config))
    loaded = checkpoint.load(tmp_path / "step")
    assert loaded.state == state
    assert loaded.config == config
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)
    assert names_in(tmp_path / "step") == sorted([*FILES, "manifest.json"])


def test_tensors_that_share_storage_or_are_strided_are_saved_apart(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "base": base,
        "same": base,
        "row": base[1],
        "transposed": base.T,
        "flat": base.view(-1),
    }
    checkpoint.save(tmp_path / "step", Checkpoint(tensors, {}, {}))
    loaded = checkpoint.load(tmp_path / "step").tensors
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    loaded["same"].zero_()
    assert torch.equal(loaded["base"], base)


def test_a_checkpoint_without_tensors_is_one(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "step", Checkpoint({}, {}, {}))
    assert checkpoint.load(tmp_path / "step") == Checkpoint({}, {}, {})


def test_loaded_tensors_outlive_their_file(tmp_path: Path) -> None:
    (folder,) = saved_at(tmp_path, 3)
    loaded = checkpoint.load(folder)
    os.truncate(folder / "tensors.safetensors", 0)
    assert loaded.tensors["w"].add_(1).tolist() == [4.0] * 4


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (folder,) = saved_at(tmp_path, 5)
    checkpoint.save(folder, checkpoint_at(6))
    assert checkpoint.load(folder).state == {"env_steps": 6}
    assert names_in(tmp_path) == [folder.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "tensors.safetensors", 5),
        lambda folder: os.truncate(folder / "manifest.json", 40),
        lambda folder: (folder / "state.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text('{"format":"stoker-checkpoint"}'),
    ],
    ids=["tensors", "manifest", "state", "version"],
)
def test_a_damaged_one_is_replaced_too(tmp_path: Path, damage: Any) -> None:
    (folder,) = saved_at(tmp_path, 5)
    damage(folder)
    with pytest.raises(CheckpointError):
        checkpoint.load(folder)
    checkpoint.save(folder, checkpoint_at(6))
    assert checkpoint.load(folder).state == {"env_steps": 6}
    assert names_in(tmp_path) == [folder.name]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    checkpoint.save(tmp_path / "model", checkpoint_at(6))
    assert checkpoint.load(tmp_path / "model").state == {"env_steps": 6}
    assert names_in(tmp_path) == ["model"]


def _theirs(place: Path) -> None:
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")


def _ours_and_theirs(place: Path) -> None:
    saved_at(place.parent, 5)[0].rename(place)
    (place / "thesis.tex").write_text("years of work")


def _a_folder_under_our_name(place: Path) -> None:
    saved_at(place.parent, 5)[0].rename(place)
    (place / "state.json").unlink()
    _theirs(place / "state.json")


def _another_manifest(place: Path) -> None:
    place.mkdir()
    (place / "manifest.json").write_text('{"format":"web-extension"}')


def _settings_alone(place: Path) -> None:
    place.mkdir()
    (place / "config.yaml").write_text("seed: 1")


def _a_link(place: Path) -> None:
    place.symlink_to(place.parent / "other")


THEIRS = [
    _theirs,
    _ours_and_theirs,
    _a_folder_under_our_name,
    _another_manifest,
    _settings_alone,
    _a_link,
    lambda place: place.write_text("a file"),
]


@pytest.mark.parametrize("name", ["model", ".replaced-model"])
@pytest.mark.parametrize("put", THEIRS)
def test_what_is_not_ours_is_never_replaced(tmp_path: Path, put: Any, name: str) -> None:
    saved_at(tmp_path, 1)[0].rename(tmp_path / "other")
    put(tmp_path / name)
    before = everything_in(tmp_path)
    with pytest.raises(
        CheckpointError, match="exists and is not a checkpoint; choose another name or remove it"
    ):
        checkpoint.save(tmp_path / "model", checkpoint_at(6))
    assert everything_in(tmp_path) == before


def test_a_folder_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the run's folder is gone"):
        checkpoint.save(tmp_path / "run" / "checkpoints" / "step", checkpoint_at(6))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "broken",
    [
        Checkpoint({}, {"x": object()}, {}),
        Checkpoint({}, {}, {"x": object()}),
        Checkpoint({"x": torch.zeros(2, device="meta")}, {}, {}),
    ],
    ids=["state", "config", "tensor"],
)
def test_a_failed_save_leaves_the_old_one_and_no_temporary(
    tmp_path: Path, broken: Checkpoint
) -> None:
    (folder,) = saved_at(tmp_path, 5)
    with pytest.raises((TypeError, NotImplementedError)):
        checkpoint.save(folder, broken)
    assert names_in(tmp_path) == [folder.name]
    assert checkpoint.load(folder).state == {"env_steps": 5}


def test_names_sort_as_steps_do() -> None:
    assert checkpoint.step_name(1234567) == "step-000001234567"
    with pytest.raises(ValueError, match="0 or more"):
        checkpoint.step_name(-1)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="is a file; a checkpoint is a folder"):
        checkpoint.load(tmp_path / "note.txt")
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        checkpoint.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"manifest\.json: it is missing"):
        checkpoint.load(tmp_path)


def test_steps_are_listed_in_order_and_nothing_else(tmp_path: Path) -> None:
    saved_at(tmp_path, 200, 3, 10**12)
    (tmp_path / "step-5").mkdir()
    (tmp_path / ".tmp-step-000000000009-1-00000000").mkdir()
    (tmp_path / "step-000000000007").write_text("a file")
    (tmp_path / "step-000000000008").symlink_to(tmp_path / checkpoint.step_name(3))
    assert [step for step, _ in checkpoint.list_steps(tmp_path)] == [3, 200, 10**12]
    assert checkpoint.list_steps(tmp_path / "nothing") == []


def test_the_newest_valid_one_is_loaded_and_the_damaged_are_named(tmp_path: Path) -> None:
    folders = saved_at(tmp_path, 1, 2, 3)
    (folders[2] / "state.json").write_text("{}")
    (folders[1] / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="Skipped a damaged") as warned:
        path, loaded = checkpoint.load_newest(tmp_path)
    assert path == folders[0]
    assert loaded.state == {"env_steps": 1}
    reasons = [str(warning.message) for warning in warned]
    assert len(reasons) == 2
    assert str(folders[2]) in reasons[0]
    assert "state.json: it has 2 bytes" in reasons[0]
    assert str(folders[1]) in reasons[1]
    assert "manifest.json: it is missing" in reasons[1]


def test_no_valid_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        checkpoint.load_newest(tmp_path)
    (folder,) = saved_at(tmp_path, 1)
    (folder / "state.json").unlink()
    with (
        pytest.warns(UserWarning, match="Skipped a damaged"),
        pytest.raises(CheckpointError, match="1 checkpoints, all"),
    ):
        checkpoint.load_newest(tmp_path)


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    folders = saved_at(tmp_path, 1, 2, 3, 4, 5)
    checkpoint.prune(tmp_path, keep=2, protect=folders[1])
    assert names_in(tmp_path) == [folders[index].name for index in (1, 3, 4)]
    with pytest.raises(ValueError, match="at least 1"):
        checkpoint.prune(tmp_path, keep=0)


def test_pruning_never_counts_a_damaged_one_as_kept(tmp_path: Path) -> None:
    folders = saved_at(tmp_path, 1, 2, 3)
    os.truncate(folders[2] / "tensors.safetensors", 5)
    checkpoint.prune(tmp_path, keep=1)
    assert names_in(tmp_path) == [folders[1].name, folders[2].name]
    with pytest.warns(UserWarning, match="Skipped a damaged"):
        assert checkpoint.load_newest(tmp_path)[0] == folders[1]


def test_pruning_removes_what_the_dead_left_and_spares_the_living(tmp_path: Path) -> None:
    (folder,) = saved_at(tmp_path, 1)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leftover = tmp_path / f".tmp-step-000000000002-{dead.pid}-0123abcd0"
    living = tmp_path / f".tmp-step-000000000003-{os.getppid()}-0123abcd0"
    reborn = tmp_path / f".tmp-step-000000000004-{os.getpid()}-0123abcd0"
    mine = temporary_sibling(tmp_path / "step-000000000005")
    for path in (leftover, living, reborn, mine):
        path.mkdir()
        (path / "state.json").write_text("{}")
    foreign = tmp_path / ".tmp-notes"
    foreign.mkdir()
    checkpoint.prune(tmp_path, keep=1)
    assert set(names_in(tmp_path)) == {path.name for path in (folder, living, mine, foreign)}


def test_one_about_to_be_replaced_still_counts(tmp_path: Path) -> None:
    """As after a kill between the two renames: it loads, is listed, protected and replaced."""
    (folder, _) = saved_at(tmp_path, 5, 9)
    hidden = folder.rename(tmp_path / f".replaced-{folder.name}")
    assert checkpoint.load(folder).state == {"env_steps": 5}
    assert checkpoint.list_steps(tmp_path)[0] == (5, hidden)
    checkpoint.prune(tmp_path, keep=1, protect=folder)
    assert hidden.exists()
    checkpoint.save(folder, checkpoint_at(6))
    assert not hidden.exists()
    assert checkpoint.load(folder).state == {"env_steps": 6}


def test_a_removed_checkpoint_does_not_come_back_as_its_predecessor(tmp_path: Path) -> None:
    old, new = saved_at(tmp_path, 5, 9)
    for folder in (old, new):
        (tmp_path / f".replaced-{folder.name}").mkdir()
    checkpoint.prune(tmp_path, keep=1)
    assert names_in(tmp_path) == [new.name]


def test_a_full_disk_keeps_the_last_checkpoint_and_leaves_nothing_temporary(
    small_disk: Any,
) -> None:
    disk: Path = small_disk.path
    (folder,) = saved_at(disk, 1)
    for target in (folder, disk / checkpoint.step_name(2)):
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpoint.save(target, checkpoint_at(2, size=1_000_000))
        assert names_in(disk) == [folder.name]
        assert checkpoint.load_newest(disk)[1].state == {"env_steps": 1}
    ballast = small_disk.fill()
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoint.save(folder, checkpoint_at(2))
    assert names_in(disk) == ["ballast", folder.name]
    assert checkpoint.load_newest(disk)[1].state == {"env_steps": 1}
    ballast.unlink()
    checkpoint.save(folder, checkpoint_at(2))
    assert checkpoint.load(folder).state == {"env_steps": 2}
