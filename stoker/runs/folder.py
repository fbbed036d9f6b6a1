"""A run's folder: where its files lie, and its settings and status."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.config.settings_yaml import dump_settings, parse_settings
from stoker.errors import ConfigError, NameTakenError, RunError
from stoker.runs.lock import RunLock, take_lock
from stoker.runs.strict_json import dumps, loads, write_atomically

CONFIG_NAME = "config.yaml"
STATUS_NAME = "status.json"
METRICS_NAME = "metrics.jsonl"
TIMELINE_NAME = "timeline.jsonl"
POPULATION_NAME = "population.json"
REPORT_NAME = "report.html"
LINEAGE_NAME = "lineage.json"
CHECKPOINTS_NAME = "checkpoints"

_NAME = re.compile(r"[^./\\\0][^/\\\0]*")


class RunFolder:
    """One run on disk: a folder with a config.yaml and checkpoints/. Made by `create` or `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, runs_dir: Path, name: str) -> RunFolder:
        """A new, empty run folder `runs_dir/name`; RunError where the name is taken or unfit."""
        if not _NAME.fullmatch(name):
            raise RunError(
                f"The run name {name!r} cannot be a folder's name: it must not be empty, start "
                "with '.' or hold a slash. Choose another with --run-name."
            )
        path = runs_dir / name
        if os.path.lexists(path):
            raise _taken(path)
        try:
            (path / CHECKPOINTS_NAME).mkdir(parents=True)
        except FileExistsError as error:  # someone else was quicker
            raise _taken(path) from error
        except OSError as error:
            raise RunError(
                f"Cannot make the run folder {path}: {error.strerror}. Choose another place with "
                "--runs-dir."
            ) from error
        return cls(path)

    @classmethod
    def create_unnamed(cls, runs_dir: Path, stem: str) -> RunFolder:
        """The same under the first name that is free of `stem`, `stem-2`, `stem-3` and so on."""
        name, number = stem, 1
        while True:
            try:
                return cls.create(runs_dir, name)
            except NameTakenError:
                number += 1
                name = f"{stem}-{number}"

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run that lies at `path`; RunError, with a near name if there is one, if none does."""
        if is_run(path):
            return cls(path)
        if not path.exists():
            found = f"There is no run at {path}."
        elif not path.is_dir():
            found = f"{path} is a file; a run is a folder."
        elif not os.path.isfile(path / CONFIG_NAME):
            found = f"{path} is not a run: it has no {CONFIG_NAME}."
        else:
            found = f"{path} is not a run: it has no folder {CHECKPOINTS_NAME}."
        raise RunError(found + _suggest(path))

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def checkpoints(self) -> Path:
        """Where the run's checkpoints lie."""
        return self.path / CHECKPOINTS_NAME

    def lock(self) -> RunLock:
        """Take the run for this process until the lock is closed; RunError if another has it."""
        return take_lock(self.path, self.name)

    def write_config(self, flat: Mapping[str, Any]) -> None:
        """Keep `Config.flat()`, all of it, resolved."""
        write_atomically(self.path / CONFIG_NAME, dump_settings(flat))

    def read_config(self) -> dict[str, Any]:
        """What `write_config` kept; RunError if it cannot be read, ConfigError if damaged."""
        path = self.path / CONFIG_NAME
        try:
            return parse_settings(path.read_bytes())
        except OSError as error:
            raise RunError(
                f"Cannot read {path}: {error.strerror}. A run needs it; restore it, or name "
                "another run."
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"{path} is damaged: {error}. Copy config.yaml from the newest folder in "
                f"{self.checkpoints} over it."
            ) from error

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace status.json with one flat object; OSError where not even that can be written.

        On a full disk the old file's own blocks are written over, so that the status can still
        say what is wrong.
        """
        for name, value in status.items():
            if isinstance(value, Mapping | list | tuple):
                raise TypeError(f"status.json is flat, but {name!r} is a {type(value).__name__}")
        text, path = dumps(status), self.path / STATUS_NAME
        try:
            write_atomically(path, text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
                raise
            _write_in_place(path, text.encode())

    def read_status(self) -> dict[str, Any]:
        """What `write_status` kept, {} if nothing yet; RunError if it is damaged."""
        path = self.path / STATUS_NAME
        try:
            status = loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read: {error}. It only mirrors the run: delete it, and resuming "
                "writes it anew."
            ) from error
        if not isinstance(status, dict):
            raise RunError(f"{path} must hold one JSON object. Delete it; resuming writes it anew.")
        return status

    def write_population(self, standings: Mapping[str, Any]) -> None:
        """Replace population.json: how the agents of a population compare."""
        write_atomically(self.path / POPULATION_NAME, dumps(standings))


def is_run(path: Path) -> bool:
    """Whether a run that we may read lies at `path`."""
    return os.path.isfile(path / CONFIG_NAME) and os.path.isdir(path / CHECKPOINTS_NAME)


def _taken(path: Path) -> NameTakenError:
    return NameTakenError(
        f"{path} exists already. Choose another name with --run-name, or go on with that run: "
        f"stoker resume {path.name}"
    )


def _suggest(path: Path) -> str:
    try:
        names = sorted(run.name for run in path.parent.iterdir() if is_run(run))
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {path.with_name(close[0])}?"
    if names:
        return f" Runs in {path.parent}: {', '.join(names[:10])}."
    return f" No runs lie in {path.parent}; `stoker train` makes one."


def _write_in_place(path: Path, data: bytes) -> None:
    """Write `data` over `path` without taking a new block; the old content stays if it cannot."""
    with open(path, "r+b", buffering=0) as file:
        old = file.read()
        # Blanks after the object are valid JSON, and shrinking first would free the blocks.
        padded = data.ljust(len(old))
        file.seek(0)
        try:
            written = file.write(padded)
        except OSError:
            written = 0
        if written < len(padded):
            file.seek(0)
            file.write(old)
            file.truncate(len(old))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file.fileno())
