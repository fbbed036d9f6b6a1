"""A checkpoint that is damaged or hostile is refused, and nothing in it is run."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stoker.errors import CheckpointError
from stoker.runs import checkpoint
from stoker.runs.checkpoint import Checkpoint
from stoker.runs.strict_json import dumps, loads

FILES = ("tensors.safetensors", "state.json", "config.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint."""
    place = tmp_path / checkpoint.step_name(5)
    checkpoint.save(place, Checkpoint({"w": torch.full((4,), 5.0)}, {"env_steps": 5}, {"seed": 5}))
    return place


def sign_again(folder: Path) -> None:
    """Make the manifest agree with the files, as an attacker would."""
    manifest = loads((folder / "manifest.json").read_bytes())
    for name in FILES:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(dumps(manifest))


def edit_manifest(folder: Path, edit: Any) -> None:
    manifest = loads((folder / "manifest.json").read_bytes())
    edit(manifest)
    (folder / "manifest.json").write_text(dumps(manifest))


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_noticed(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name}: its SHA-256 is .* the manifest says"):
        checkpoint.load(folder)


def test_any_changed_byte_of_the_manifest_is_noticed(folder: Path) -> None:
    manifest = folder / "manifest.json"
    data = manifest.read_bytes()
    for position in range(len(data)):
        for flip in (0x01, 0x20, 0x80):
            changed = bytearray(data)
            changed[position] ^= flip
            manifest.write_bytes(changed)
            with pytest.raises(CheckpointError):
                checkpoint.load(folder)
    manifest.write_bytes(data)
    checkpoint.load(folder)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_truncated_file_is_noticed(folder: Path, name: str) -> None:
    size = (folder / name).stat().st_size
    for left in (size - 1, size // 2, 0):
        os.truncate(folder / name, left)
        with pytest.raises(CheckpointError, match="Load an older checkpoint"):
            checkpoint.load(folder)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: it is missing"):
        checkpoint.load(folder)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_link_a_folder_or_a_pipe_in_place_of_a_file_is_refused(
    folder: Path, tmp_path: Path, name: str
) -> None:
    (folder / name).rename(tmp_path / "elsewhere")
    for put in (
        lambda path: path.symlink_to(tmp_path / "elsewhere"),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
    ):
        put(folder / name)
        with pytest.raises(CheckpointError, match=f"{name}: it is not a regular file"):
            checkpoint.load(folder)
        (folder / name).rename(tmp_path / f"tried-{len(list(tmp_path.iterdir()))}")


def test_a_manifest_cannot_point_elsewhere(folder: Path) -> None:
    (folder / "state.json").rename(folder.parent / "state.json")
    edit_manifest(
        folder,
        lambda manifest: manifest["files"].update(
            {"../state.json": manifest["files"].pop("state.json")}
        ),
    )
    with pytest.raises(CheckpointError, match="not exactly"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda m: m.update(extra=1), "not exactly"),
        (lambda m: m["files"].update({"more.json": m["files"]["state.json"]}), "not exactly"),
        (lambda m: m["files"].pop("config.yaml"), "not exactly"),
        (lambda m: m["files"]["state.json"].update(mode=7), "nothing else"),
        (lambda m: m["files"]["state.json"].update(size=True), "nothing else"),
        (lambda m: m["files"]["state.json"].update(sha256=None), "nothing else"),
        (lambda m: m.update(files=[]), "must be an object"),
        (lambda m: m.update(format="zip"), "'stoker-checkpoint'"),
        (lambda m: m.update(version=2), "version 2; this Stoker reads version 1"),
        (lambda m: m.update(version=True), "version True"),
    ],
)
def test_a_manifest_says_exactly_what_it_must(folder: Path, edit: Any, reason: str) -> None:
    edit_manifest(folder, edit)
    with pytest.raises(CheckpointError, match=reason):
        checkpoint.load(folder)


class Payload:
    """Makes a marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def hostile_pickles(marker: Path, tmp_path: Path) -> list[bytes]:
    """The payload in every pickle protocol and in both of torch's formats."""
    pickles = [pickle.dumps(Payload(marker), protocol) for protocol in range(6)]
    for zipped in (True, False):
        torch.save(Payload(marker), tmp_path / "model", _use_new_zipfile_serialization=zipped)
        pickles.append((tmp_path / "model").read_bytes())
    return pickles


def test_a_hostile_pickle_is_named_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for hostile in hostile_pickles(marker, tmp_path):
        (tmp_path / "model.pt").write_bytes(hostile)
        with pytest.raises(CheckpointError, match="looks like a Python pickle; Stoker never"):
            checkpoint.load(tmp_path / "model.pt")
        for name in FILES:
            (folder / name).write_bytes(hostile)
            sign_again(folder)
            with pytest.raises(CheckpointError, match="looks like a Python pickle; Stoker never"):
                checkpoint.load(folder)
            for path, content in whole.items():
                path.write_bytes(content)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists(), "the payload would not have run anyway, so this proved nothing"


def test_a_header_that_begins_like_a_pickle_still_loads(tmp_path: Path) -> None:
    """A safetensors header of 640 bytes begins with 0x80 0x02, as pickle protocol 2 does."""
    for length in range(1, 640):
        tensors = {"n" * length: torch.zeros(1)}
        data = safetensors.torch.save(tensors)
        if data.startswith(b"\x80\x02"):
            break
    else:
        pytest.fail("no name made a header of 640 bytes")
    checkpoint.save(tmp_path / "step", Checkpoint(tensors, {}, {}))
    assert checkpoint.load(tmp_path / "step").tensors.keys() == tensors.keys()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"!!python/object/apply:os.mkdir ['MARKER']"),
        ("config.yaml", b"a: &a [1]\nb: *a\n"),
        ("config.yaml", b"- a\n- b\n"),
        ("config.yaml", b"[" * 100_000),
        ("state.json", b'{"env_steps": NaN}'),
        ("state.json", b'{"a": 1, "a": 2}'),
        ("state.json", b"[]"),
        ("state.json", b"[" * 100_000),
        ("tensors.safetensors", b"\xff" * 100),
        ("tensors.safetensors", b""),
    ],
)
def test_hostile_content_with_matching_checksums_is_refused(
    folder: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    marker = tmp_path / "marker"
    (folder / name).write_bytes(content.replace(b"MARKER", str(marker).encode()))
    sign_again(folder)
    with pytest.raises(CheckpointError, match="not the right content"):
        checkpoint.load(folder)
    assert not marker.exists()
