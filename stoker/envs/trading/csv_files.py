"""Bars from CSV files: one file for each asset, or one with a column that names the asset."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from stoker.envs.trading.bars import COLUMNS, Bars, joined
from stoker.errors import ConfigError

Source = str | Path | Sequence[str | Path]
_ASSET = ("asset", "symbol")
_EXPECTED = f"{', '.join(COLUMNS)}, in any order"


def read_bars(source: Source) -> Bars:
    """The bars of a file, of several, or of all .csv files in a folder.

    What is wrong is told of all files at once.
    """
    given = [source] if isinstance(source, str | Path) else list(source)
    if not given:
        raise ConfigError("No file of bars was given. Name a CSV file, several, or a folder.")
    problems: list[str] = []
    series: list[Bars] = []
    for path in (file for name in given for file in _files(Path(name))):
        with _noted(problems, path):
            for name, rows in _read(path).items():
                columns = np.array(rows, np.float64).T
                with _noted(problems, path):
                    series.append(Bars((name,), columns[0], *columns[1:, :, None]))
    if problems:
        raise ConfigError(problems)
    return joined(series)


@contextmanager
def _noted(problems: list[str], path: Path) -> Iterator[None]:
    """What is wrong with a file goes to `problems`, and the rest is read all the same."""
    try:
        yield
    except ConfigError as error:
        problems += [f"{path}: {problem}" for problem in error.problems]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Name a CSV file, several, or a folder of them.")
    if path.is_file():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == ".csv")
    if not found:
        raise ConfigError(f"The folder {path} has no .csv file. Put one for each asset there.")
    return found


def _read(path: Path) -> dict[str, list[list[float]]]:
    """By asset, its rows with the numbers of `COLUMNS`."""
    assets: dict[str, list[list[float]]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None:
                raise ConfigError(
                    f"it is empty; expected a line that names the columns ({_EXPECTED}), then a "
                    "line for each bar. Export it again."
                )
            for name, row in _rows(reader, _places(header), path.stem):
                assets.setdefault(name, []).append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot be read as CSV in UTF-8 ({error}). Export it again.") from error
    if not assets:
        raise ConfigError("it names columns and has no bars; expected a line for each. Add them.")
    return assets


def _places(header: Sequence[str]) -> dict[str, int]:
    """Where each column is."""
    names = [name.strip().lower() for name in header]
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise ConfigError(
            f"its columns are {', '.join(names)}, without {', '.join(missing)}; expected "
            f"{_EXPECTED}. Rename or add what is missing."
        )
    twice = sorted({name for name in (*COLUMNS, *_ASSET) if names.count(name) > 1})
    if twice:
        raise ConfigError(f"it has more than one column {', '.join(twice)}. Leave one of each.")
    return {name: place for place, name in enumerate(names)}


def _rows(
    reader: Iterator[list[str]], places: dict[str, int], stem: str
) -> Iterator[tuple[str, list[float]]]:
    """Asset and numbers of each line that is not blank."""
    naming = next((name for name in _ASSET if name in places), None)
    for line, fields in enumerate(reader, 2):
        if not fields:
            continue
        if len(fields) != len(places):
            raise ConfigError(
                f"line {line} has {len(fields)} fields; expected {len(places)}, as in the first "
                "line. Correct the line or leave it out."
            )
        row = [_number(column, fields[places[column]], line) for column in COLUMNS]
        yield (fields[places[naming]].strip() if naming else stem), row


def _number(column: str, text: str, line: int) -> float:
    """What a field says; a date is the seconds since 1970, in UTC unless it says otherwise."""
    try:
        return float(text)
    except ValueError:
        wanted = "a number"
    if column == "time":
        try:
            date = datetime.fromisoformat(text.strip())
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            wanted = "a number or a date such as 2024-01-31 or 2024-01-31T16:00"
    raise ConfigError(
        f"line {line}: {column} is {text!r}; expected {wanted}. Correct the line or leave it out."
    )
