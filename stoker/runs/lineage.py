"""Where a run comes from: its parent, the code, the settings, the spaces, the versions."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from stoker.runs.folder import LINEAGE_NAME, RunFolder
from stoker.runs.strict_json import dumps, write_atomically


def write_lineage(
    folder: RunFolder, *, parent: str | None, config: Mapping[str, Any], spaces: Mapping[str, Any]
) -> None:
    """Write lineage.json: what one needs to make this run again. What is unknown is null."""
    lineage = {
        "parent": parent,
        "git_commit": _git_commit(),
        "config_hash": config_hash(config),
        "spaces": spaces,
        "versions": {
            "stoker": _version("stoker"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomically(folder.path / LINEAGE_NAME, dumps(lineage))


def config_hash(config: Mapping[str, Any]) -> str:
    """The SHA-256 of `config` as JSON with its names sorted: equal settings, equal hash."""
    return hashlib.sha256(dumps(config, sort_keys=True).encode()).hexdigest()


def _git_commit() -> str | None:
    """The commit checked out in the working directory, or None: git is no condition of training."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def _version(package: str) -> str | None:
    # From the package's metadata, not the package: importing torch here would cost seconds.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
