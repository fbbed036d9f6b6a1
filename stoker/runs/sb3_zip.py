"""A model that Stable-Baselines3 saved, read without running anything that is in it.

    model.zip
        data            JSON; objects are in it as text and, beside it, as pickles in base64,
                        which are left alone
        policy.pth      the weights, as torch.save writes them: read as tensors and nothing else

The other entries (the optimiser, what it calls variables, versions) are not opened, but for the
number of the version.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.errors import ModelFileError

DATA, POLICY, VERSION = "data", "policy.pth", "_stable_baselines3_version"
_LIMITS = {DATA: 64 << 20, POLICY: 1 << 30, VERSION: 100}
_MOST_SHRUNK = 100  # times; weights hardly shrink, and what shrinks far more is a bomb
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


class ForeignModel(NamedTuple):
    """What the file says of a model, and its weights."""

    name: str
    facts: dict[str, Any]
    """What `data` has in plain words and numbers."""
    tensors: dict[str, Tensor]
    """By the names of Stable-Baselines3; float32, on the CPU."""
    version: str | None
    """Of the Stable-Baselines3 that saved it."""


def read_model(path: Path) -> ForeignModel:
    """The model at `path`; ModelFileError if it is none, or is not safe to read."""
    if path.is_dir():
        raise ModelFileError(
            f"{path} is a folder; what model.save() of Stable-Baselines3 writes is a file, such as "
            "model.zip. A folder that Stoker wrote is loaded with PPO.load or DQN.load."
        )
    try:
        with _archive(path) as archive:
            facts = _facts(path, _entry(path, archive, DATA))
            tensors = _tensors(path, _entry(path, archive, POLICY))
            known = VERSION in archive.namelist()
            version = _entry(path, archive, VERSION).decode("utf-8", "replace") if known else None
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror or error}.") from error
    return ForeignModel(path.name, facts, tensors, version)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except (*_BROKEN, ValueError) as error:
            raise _refused(path, f"it is no zip archive ({error})") from error
        with archive:
            yield archive


def _entry(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """An entry's bytes, once its size is known to be one that a model can have."""
    try:
        found = archive.getinfo(name)
    except KeyError:
        names = ", ".join(archive.namelist()[:8]) or "nothing"
        raise _refused(path, f"it has no entry {name!r:.40}, but {names:.200}") from None
    if found.file_size > _LIMITS[name]:
        raise _refused(
            path, f"{name} would take {found.file_size:,} bytes, and {_LIMITS[name]:,} are the most"
        )
    if found.file_size > 1000 + _MOST_SHRUNK * found.compress_size:
        raise _refused(
            path,
            f"{name} would grow from {found.compress_size:,} to {found.file_size:,} bytes, as in "
            "an archive made to fill memory",
        )
    try:
        return archive.read(name)
    except _BROKEN as error:
        raise _refused(path, f"{name} is damaged ({error})") from error


def _facts(path: Path, text: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"data is not JSON ({error})") from error
    if not isinstance(facts, dict):
        raise _refused(path, "data is not one JSON object")
    return facts


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """The tensors of `policy.pth`, by torch's reader for tensors, which calls nothing by name."""
    _refuse_inner_bomb(path, content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch thinks of old files
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        _, _, why = str(error).partition("WeightsUnpickler error:")  # without torch's advice
        first = "".join(f": {line!r:.200}" for line in why.strip().splitlines()[:1])
        raise _refused(
            path, f"policy.pth holds more than tensors, which could run code{first}"
        ) from error
    except Exception as error:  # whatever a damaged file makes of torch's reader
        raise _refused(path, f"policy.pth cannot be read ({error!s:.200})") from error
    if not isinstance(loaded, dict):
        raise _refused(path, f"policy.pth holds a {type(loaded).__name__}, not tensors by name")
    for name, value in loaded.items():
        if not isinstance(name, str) or not _is_plain(value):
            kind = getattr(value, "dtype", type(value).__name__)
            raise _refused(path, f"policy.pth has {name!r:.60}, which is {kind} and no weights")
        if value.nbytes > value.untyped_storage().nbytes():  # one number, said to be thousands
            raise _refused(path, f"{name!r:.60} in policy.pth has fewer numbers than it says")
    return {name: value.detach() for name, value in loaded.items()}


def _is_plain(value: Any) -> bool:
    return type(value) is Tensor and value.layout == torch.strided and value.dtype == torch.float32


def _refuse_inner_bomb(path: Path, content: bytes) -> None:
    """What torch.save writes is a zip archive of its own, in which nothing is compressed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            entries = inner.infolist()
    except (*_BROKEN, ValueError) as error:
        raise _refused(
            path,
            f"policy.pth is not the archive that torch.save has written since torch 1.6 ({error})",
        ) from error
    sizes = sum(entry.file_size for entry in entries)
    if sizes > len(content) or any(entry.compress_type for entry in entries):
        raise _refused(
            path, f"policy.pth would grow from {len(content):,} to {sizes:,} bytes when read"
        )


def _refused(path: Path, found: str) -> ModelFileError:
    return ModelFileError(
        f"{path} cannot be imported: {found}. Expected is what model.save() of Stable-Baselines3 "
        "writes for PPO or DQN. Nothing in it was run; save the model again, and import that."
    )
