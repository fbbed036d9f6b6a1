"""Checkpoints: folders of safetensors, JSON and YAML under a manifest with checksums.

    checkpoints/step-000001234567/
        tensors.safetensors   every tensor by name
        state.json            counters and whatever else is no tensor
        config.yaml           the resolved settings
        rows-00000.safetensors ...   of what is too large to hold twice, such as a replay, a part
        manifest.json         the format, and the size and SHA-256 of each

A folder is written under a hidden name, synced and renamed, so a step's folder is whole or is not
there. Where one is replaced, the old one stands under `.replaced-NAME` for the instant between the
two renames; every reader here looks there too. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from stoker.config.settings_yaml import dump_settings, parse_settings
from stoker.errors import CheckpointError
from stoker.runs.manifest import (
    CONFIG,
    MANIFEST,
    STATE,
    TENSORS,
    FileFacts,
    describe_file,
    dump_manifest,
    has_right_sizes,
    may_be_replaced,
    read_head,
    read_verified,
    refuse_pickle,
    rows_name,
    verified_contents,
)
from stoker.runs.steps import list_steps as list_steps
from stoker.runs.steps import step_name as step_name
from stoker.runs.strict_json import dumps, loads
from stoker.runs.temporary import remove_leftovers, remove_tree, sync_folder, temporary_sibling


class Checkpoint(NamedTuple):
    """Everything that a run needs to go on."""

    tensors: dict[str, Tensor]  # any shape and dtype; on the CPU when loaded
    state: dict[str, Any]  # as JSON: a tuple comes back as a list, a non-finite number as None
    config: dict[str, Any]  # the resolved settings, flat
    rows: Iterable[dict[str, Tensor]] = ()  # taken, written and read one part at a time


class _StoredRows:
    """Parts of a checkpoint that lie on the disk; each is read, and proved, when it is wanted."""

    def __init__(self, files: Mapping[Path, FileFacts]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for path, facts in self._files.items():
            yield safetensors.torch.load(read_verified(path, facts))


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` at `folder`, whole or not at all; an older checkpoint there is replaced.

    CheckpointError where the disk does not take it, where anything but a checkpoint or an empty
    folder stands there, or where the folder around it is gone: what stood before stands still, and
    nothing temporary is left. TypeError or ValueError where the content is no tensor, JSON or
    setting.
    """
    _check_place(folder)
    temporary = temporary_sibling(folder)
    try:
        _write_files(temporary, checkpoint)
        _put_in_place(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"Could not write the checkpoint {folder}: {error}. Older checkpoints are untouched; "
            "make room or see to the disk, and the next save will be tried as usual."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path) -> Checkpoint:
    """The checkpoint at `folder`; CheckpointError unless every byte is what the manifest says."""
    place = _standing(folder)
    if place.is_file():
        refuse_pickle(place, read_head(place))
        raise CheckpointError(
            f"{folder} is a file; a checkpoint is a folder with a {MANIFEST}. Name a folder such "
            f"as {step_name(0)}."
        )
    if not place.is_dir():
        raise CheckpointError(
            f"There is no checkpoint at {folder}. Name a folder such as checkpoints/{step_name(0)}."
        )
    contents, rows = verified_contents(place)
    try:
        state = loads(contents[STATE])
        if not isinstance(state, dict):
            raise ValueError(f"{STATE} must hold one JSON object")
        config = parse_settings(contents[CONFIG])
        tensors = safetensors.torch.load(contents[TENSORS])
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{place} has the right checksums but not the right content: {error}. It was not "
            "written by this Stoker; load another checkpoint."
        ) from error
    return Checkpoint(tensors, state, config, _StoredRows(rows) if rows else ())


def load_newest(parent: Path) -> tuple[Path, Checkpoint]:
    """The newest checkpoint in `parent` that is valid; a warning for each that had to be skipped.

    CheckpointError if there is none.
    """
    steps = list_steps(parent)
    for _, path in reversed(steps):
        try:
            return path, load(path)
        except CheckpointError as error:
            warnings.warn(f"Skipped a damaged checkpoint: {error}", stacklevel=2)
    found = f"{len(steps)} checkpoints, all damaged" if steps else "no checkpoint"
    raise CheckpointError(
        f"Found {found} in {parent}. Restore one from a backup, or start the run anew."
    )


def prune(parent: Path, keep: int, protect: Path | None = None) -> None:
    """Remove all checkpoints but the newest `keep` and `protect`, and dead processes' leftovers.

    One whose files are missing or cut short counts as none of the `keep`, so that pruning never
    removes the last good one for the sake of a damaged one.
    """
    if keep < 1:
        raise ValueError(f"keep at least 1 checkpoint, not {keep}")
    protected = _replaced(protect.resolve()) if protect is not None else None
    kept = 0
    for _, path in reversed(list_steps(parent)):
        replaced = _replaced(path)
        if kept >= keep and replaced.resolve() != protected:
            # The replaced one first, or it would stand for its successor when that is gone.
            _remove(replaced)
            _remove(path)
        elif has_right_sizes(path):
            kept += 1
            if path != replaced:
                _remove(replaced)
    remove_leftovers(parent)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        remove_tree(folder)


def _replaced(folder: Path) -> Path:
    """Where the predecessor of `folder` stands while it is replaced."""
    name = folder.name.removeprefix(".replaced-")
    return folder.with_name(f".replaced-{name}")


def _standing(folder: Path) -> Path:
    """`folder`, or the one it was about to replace when the writer was killed."""
    replaced = _replaced(folder)
    return replaced if not folder.exists() and replaced.is_dir() else folder


def _check_place(folder: Path) -> None:
    """CheckpointError unless a checkpoint may be put at `folder`."""
    # Not made here: a run whose folder was deleted must not come back as a stump of itself.
    if not os.path.isdir(folder.parent):
        raise CheckpointError(
            f"Could not write the checkpoint {folder}: the run's folder is gone, there is no "
            f"{folder.parent}. Put it back, and the next save will be tried as usual, or stop the "
            "run."
        )
    for place in (folder, _replaced(folder)):
        if os.path.lexists(place) and not may_be_replaced(place):
            raise CheckpointError(
                f"{place} exists and is not a checkpoint; choose another name or remove it."
            )


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    (folder / STATE).write_text(dumps(checkpoint.state), encoding="utf-8")
    (folder / CONFIG).write_text(dump_settings(checkpoint.config), encoding="utf-8")
    _write_tensors(folder / TENSORS, checkpoint.tensors)
    names = [TENSORS, STATE, CONFIG]
    for place, part in enumerate(checkpoint.rows):
        names.append(rows_name(place))
        _write_tensors(folder / names[-1], part)
    files = {name: describe_file(folder / name) for name in names}
    (folder / MANIFEST).write_text(dump_manifest(files), encoding="utf-8")
    for name in (*names, MANIFEST):
        with open(folder / name, "r+b") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    safetensors.torch.save_file(_on_host(tensors), path)
    shutil.copymode(path.with_name(STATE), path)  # safetensors makes it its owner's alone


def _on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors with a storage each, as safetensors wants them."""
    taken: set[int] = set()
    host = {}
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        if copy.untyped_storage().data_ptr() in taken:
            copy = copy.clone()
        taken.add(copy.untyped_storage().data_ptr())
        host[name] = copy
    return host


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename `temporary` to `folder`; what stood there goes only when its successor stands."""
    replaced = _replaced(folder)
    if folder.exists():
        _remove(replaced)
        folder.rename(replaced)
    try:
        temporary.rename(folder)
    except BaseException:
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        raise
    sync_folder(folder.parent)
    with contextlib.suppress(OSError):  # the new one stands; `prune` will find the old one
        _remove(replaced)
