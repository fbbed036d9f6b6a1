"""A job as it is typed: the words after `stoker`, what they settle, and copies of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stoker.config.check import name_problems
from stoker.config.load import find_preset, read_file
from stoker.config.names import find_field
from stoker.config.numbers import parse_count
from stoker.errors import ConfigError

COMMANDS = ("train", "resume")
_BESIDES = ("config", "preset", "json")
"""Flags of `stoker train` that are no settings."""


class Job(NamedTuple):
    """A run to be trained."""

    name: str
    words: tuple[str, ...]
    """What starts it, after `stoker`."""
    path: Path
    """The run's folder, which need not be there yet."""
    settings: Mapping[str, Any]
    """Those that words, file and preset name, as they are written there; the run checks them."""
    file: Mapping[str, Any] | None = None
    """What is to be in the file that `--config` names, if that is the packer's to write."""


def make_job(words: Sequence[str], default_name: str, runs_dir: str) -> Job:
    """The job that `words` describe; what they do not say of name and folder is added."""
    command = words[0] if words else ""
    if command not in COMMANDS:
        raise ConfigError(
            f"A job begins with {command!r}; it must be `train` with its flags, or `resume RUN`."
        )
    settings = settings_of(words)
    if command == "resume":
        return _resumed(words, str(settings.get("runs_dir", runs_dir)))
    name = str(settings.get("run_name") or default_name)
    if problems := list(name_problems(name)):  # before a log or a file is called so
        raise ConfigError(problems)
    added = {"run_name": name, "runs_dir": str(settings.get("runs_dir", runs_dir))}
    return Job(
        name,
        with_flags(words, added),
        Path(added["runs_dir"]) / name,
        {**settings, **added},
    )


def _resumed(words: Sequence[str], runs_dir: str) -> Job:
    if len(words) < 2 or words[1].startswith("-"):
        raise ConfigError("A job `resume` names no run; it must be `resume RUN`, then its flags.")
    run = Path(words[1])
    path = run if len(run.parts) > 1 else Path(runs_dir) / run
    return Job(path.name, ("resume", str(path), *words[2:]), path, settings_of(words))


def copies(words: Sequence[str], count: int, default_name: str, runs_dir: str) -> list[Job]:
    """`count` jobs that differ in seed and name: the seeds s, s + 1 and so on."""
    alone = make_job(words, default_name, runs_dir)
    if count == 1:
        return [alone]
    if words[0] == "resume":
        raise ConfigError(f"A run cannot be resumed {count} times at once; leave -n out.")
    settings = settings_of(words)
    try:
        first = parse_count(settings.get("seed", 0))
    except ValueError as error:
        raise ConfigError(f"seed: {error}.") from error
    base = str(settings.get("run_name") or default_name)
    names = {seed: f"{base}-s{seed}" for seed in range(first, first + count)}
    return [
        make_job(with_flags(words, {"seed": str(seed), "run_name": name}), name, runs_dir)
        for seed, name in names.items()
    ]


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """Settings by name, as the words, their file and their preset have them; nothing is checked.

    What is wrong with any of them is for the run itself to say.
    """
    flags = {name: value for name, value, _, _ in _flags(words)}
    file: dict[str, Any] = {}
    preset: Mapping[str, Any] = {}
    with suppress(ConfigError):
        file = read_file(Path(flags["config"])) if "config" in flags else {}
    with suppress(ConfigError):  # also for `auto`: what was tuned is the run's to look up
        named = flags.get("preset", file.pop("preset", None))
        preset = find_preset(named) if named is not None else {}
    return {**preset, **by_name(file), **{n: v for n, v in flags.items() if n not in _BESIDES}}


def by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their one name, whatever they were called; unknown ones are left out."""
    fields = ((find_field(key), value) for key, value in settings.items())
    return {field.name: value for field, value in fields if field is not None}


def with_flags(words: Sequence[str], added: Mapping[str, str]) -> tuple[str, ...]:
    """`words` with these settings as flags, in place of what they say of them."""
    said = [range(begin, end) for name, _, begin, end in _flags(words) if name in added]
    kept = [word for i, word in enumerate(words) if not any(i in place for place in said)]
    flags = [part for name, v in added.items() for part in (f"--{name.replace('_', '-')}", v)]
    return (*kept, *flags)


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    """The setting that each flag names, its value, and from where to where its words are."""
    for i, word in enumerate(words):
        written, equals, value = word.partition("=")
        bare = written[2:]
        field = find_field(bare)
        if not written.startswith("--") or (field is None and bare not in _BESIDES):
            continue
        follows = words[i + 1] if i + 1 < len(words) else "--"
        taken = not equals and not follows.startswith("--")
        name = field.name if field is not None else bare
        yield name, follows if taken else value, i, i + 1 + taken
