"""A file of jobs: YAML, loaded safely, a list of argument lists or of settings by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.config.settings_yaml import parse_yaml
from stoker.errors import ConfigError
from stoker.jobs.words import Job, by_name, make_job

_SHAPE = "a list, each entry a list of words ([train, --env, CartPole-v1]) or settings by name"


def read_jobs(file: Path, pack: str, folder: Path, runs_dir: str) -> list[Job]:
    """The jobs of `file`; those without a name get one from `pack`. ConfigError names each fault.

    Settings by name become a file of their own in `folder`, which is written when the job starts.
    """
    try:
        entries = parse_yaml(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read the job file {file}: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"The job file {file} cannot be used: {error}.") from error
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"The job file {file} must hold {_SHAPE}.")
    jobs, problems = [], []
    for number, entry in enumerate(entries):
        try:
            jobs.append(_job(entry, f"{pack}-{number}", folder, runs_dir))
        except ConfigError as error:
            problems += [f"{file}, entry {number + 1}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return jobs


def _job(entry: Any, default_name: str, folder: Path, runs_dir: str) -> Job:
    if isinstance(entry, list) and entry and all(_is_word(word) for word in entry):
        return make_job([str(word) for word in entry], default_name, runs_dir)
    if isinstance(entry, dict) and entry and all(isinstance(key, str) for key in entry):
        return _from_settings(entry, default_name, folder, runs_dir)
    raise ConfigError(f"{entry!r:.80} is no job; the file must hold {_SHAPE}.")


def _from_settings(settings: dict[str, Any], default_name: str, folder: Path, runs_dir: str) -> Job:
    known = by_name(settings)
    name = str(known.get("run_name") or default_name)
    words = ("train", "--config", str(folder / f"{name}.yaml"))
    job = make_job(words, name, str(known.get("runs_dir", runs_dir)))
    return job._replace(settings={**known, **job.settings}, file=settings)


def _is_word(word: Any) -> bool:
    return isinstance(word, str | int | float) and not isinstance(word, bool)


def refuse_twins(jobs: Sequence[Job]) -> None:
    """ConfigError where two jobs would train in one folder, or write to one log."""
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise ConfigError(
                f"Two jobs are called {job.name}, and a run trains once at a time. Give each a "
                "run_name of its own."
            )
        seen.add(job.name)
