"""A checkpoint's manifest: which files it has, their sizes and checksums, and proving them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stoker.errors import CheckpointError
from stoker.runs.strict_json import dumps, loads

TENSORS = "tensors.safetensors"
STATE = "state.json"
CONFIG = "config.yaml"
MANIFEST = "manifest.json"
FORMAT = "stoker-checkpoint"
VERSION = 1

_NAMES = (TENSORS, STATE, CONFIG)
_ROWS = re.compile(r"rows-\d{5}\.safetensors")
_MANIFEST_LIMIT = 64 * 1024
# torch.save's zip, pickle protocols 2 to 5, then what 0 and 1 begin with: a mark, a container put
# in the memo, a global's module and name. No JSON, settings or safetensors begin like that.
_PICKLE_HEAD = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]|\(|[\]})]q|c[\w.]+\n[\w.]+\n")


class FileFacts(NamedTuple):
    """What a manifest says of one file."""

    size: int
    sha256: str


def rows_name(place: int) -> str:
    """The name of a file of rows, by its place among them; names sort as places do."""
    return f"rows-{place:05d}.safetensors"


def dump_manifest(files: Mapping[str, FileFacts]) -> str:
    """The text of manifest.json."""
    facts = {name: file._asdict() for name, file in files.items()}
    return dumps({"format": FORMAT, "version": VERSION, "files": facts})


def describe_file(path: Path) -> FileFacts:
    """The size and SHA-256 of the file at `path`."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileFacts(os.fstat(file.fileno()).st_size, digest)


class Contents(NamedTuple):
    """What a checkpoint's folder holds."""

    files: dict[str, bytes]
    """The three files."""
    rows: dict[Path, FileFacts]
    """The files of rows, in order. They are too large to hold, so each is read when it is wanted,
    with `read_verified`."""


def verified_contents(folder: Path) -> Contents:
    """The bytes of the three files, once they and the rows are proved to be those the manifest
    names.

    What is proved is what is returned: no file is opened a second time, where it could be another,
    but for rows, and those are proved again.
    """
    manifest = _read_manifest(folder)
    for name, facts in manifest.items():
        _check_size(folder / name, facts)
    rows = {folder / name: facts for name, facts in manifest.items() if name not in _NAMES}
    for path, facts in rows.items():
        read_verified(path, facts)
    return Contents({name: read_verified(folder / name, manifest[name]) for name in _NAMES}, rows)


def has_right_sizes(folder: Path) -> bool:
    """Whether the manifest is sound and its files are there, whole by their sizes; checksums,
    which would mean reading it all, are not looked at."""
    try:
        for name, facts in _read_manifest(folder).items():
            _check_size(folder / name, facts)
    except CheckpointError:
        return False
    return True


def may_be_replaced(folder: Path) -> bool:
    """Whether `folder` is an empty folder or one of our checkpoints, sound or damaged, with
    nothing else in it: no one's work but ours is lost with it."""
    if folder.is_symlink():
        return False
    try:
        with os.scandir(folder) as entries:
            regular = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
        if not regular:
            return True
        others = regular.keys() - {*_NAMES, MANIFEST}
        if not all(regular.values()) or not all(map(_ROWS.fullmatch, others)):
            return False
        # Looked for and not parsed: a manifest that was cut short is still ours.
        return f'"{FORMAT}"'.encode() in _read_regular(folder / MANIFEST, limit=_MANIFEST_LIMIT)
    except (OSError, CheckpointError):
        return False


def read_head(path: Path) -> bytes:
    """The first bytes of a regular file, enough for `refuse_pickle`."""
    return _read_regular(path, limit=64)


def refuse_pickle(path: Path, head: bytes) -> None:
    """CheckpointError if a file that begins with `head` is a pickle, or an archive of one."""
    # A safetensors header of 640 bytes begins as a pickle does: its brace tells it apart.
    if head[4:9] == b"\0\0\0\0{":
        return
    if _PICKLE_HEAD.match(head):
        raise CheckpointError(
            f"{path} looks like a Python pickle; Stoker never unpickles, because that runs "
            "whatever code the file holds. Nothing in it was run. Load a checkpoint that Stoker "
            "wrote; a model of Stable-Baselines3 becomes one with stoker import."
        )


def _read_manifest(folder: Path) -> dict[str, FileFacts]:
    path = folder / MANIFEST
    text = _read_regular(path, limit=_MANIFEST_LIMIT)
    refuse_pickle(path, text)
    if len(text) > _MANIFEST_LIMIT:
        raise _damaged(path, f"it is larger than {_MANIFEST_LIMIT} bytes")
    try:
        manifest = loads(text)
    except ValueError as error:
        raise _damaged(path, f"it is not strict JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, f"it is not a manifest of the format {FORMAT!r}")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        raise CheckpointError(
            f"{folder} has format version {version!r:.40}; this Stoker reads version {VERSION}. "
            "Load it with the Stoker that wrote it."
        )
    _check_names(path, manifest, ("format", "version", "files"))
    files = manifest["files"]
    if not isinstance(files, dict):
        raise _damaged(path, "its 'files' must be an object")
    rows = sorted(name for name in files if _ROWS.fullmatch(name))
    if rows != [rows_name(place) for place in range(len(rows))]:
        raise _damaged(path, "it does not name every file of rows")
    names = (*_NAMES, *rows)
    _check_names(path, files, names)
    return {name: _facts(path, name, files[name]) for name in names}


def _check_names(path: Path, found: Mapping[str, Any], expected: tuple[str, ...]) -> None:
    if set(found) != set(expected):
        raise _damaged(path, f"it names {sorted(found)!r:.300}, not exactly {sorted(expected)}")


def _facts(path: Path, name: str, entry: Any) -> FileFacts:
    match entry:
        case {"size": int(size), "sha256": str(sha256), **rest} if not rest and type(size) is int:
            return FileFacts(size, sha256)
    raise _damaged(path, f"its entry for {name} must be a 'size' and a 'sha256', nothing else")


def _check_size(path: Path, facts: FileFacts) -> None:
    refuse_pickle(path, read_head(path))
    size = path.stat().st_size
    if size != facts.size:
        raise _damaged(path, f"it has {size} bytes and the manifest says {facts.size}")


def read_verified(path: Path, facts: FileFacts) -> bytes:
    """The bytes of a file; CheckpointError unless they are those that the manifest names."""
    data = _read_regular(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != facts.sha256:
        raise _damaged(path, f"its SHA-256 is {digest}, the manifest says {facts.sha256:.64}")
    return data


def _read_regular(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file, at least its first `limit` bytes and no more than one past.

    No link is followed, and a pipe put in a file's place cannot keep us waiting.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise _damaged(path, "it is not a regular file (a link, a folder or a device)")
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _damaged(path, "it is not a regular file")
            return file.read() if limit is None else file.read(limit + 1)
    except FileNotFoundError as error:
        raise _damaged(path, "it is missing") from error
    except OSError as error:
        raise _damaged(path, f"it cannot be read ({error.strerror})") from error


def _damaged(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint {path.parent} cannot be used: {path.name}: {found}. Load an older "
        "checkpoint, or restore this one from a backup."
    )
