"""`python -m bench.gymnasium_tests PATH`: Gymnasium's own tests of vector environments on our pool.

PATH is a checkout of Gymnasium's source at the version that is installed: its source distribution
on PyPI leaves `tests/vector` out. Nothing is fetched. The tests run twice, with Gymnasium's own
`SyncVectorEnv` and `AsyncVectorEnv`, and with ours in their place: the inline pool for the first,
the process pool for the second. Every test is printed with both outcomes, and with the reason
where ours does not pass. A test that fails for Gymnasium too lacks something here (a renderer, a
physics engine) or is of another version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium

from stoker.errors import ConfigError
from stoker.pools.as_gymnasium import PoolVectorEnv
from stoker.train.vec import PoolKind, open_envs

ROOT = Path(__file__).resolve().parent.parent
_TIME_LIMIT_S = 300


class InPlace(PoolVectorEnv):
    """Made as Gymnasium's two classes are made; refuses what ours have no word for."""

    kind: PoolKind

    def __init__(
        self,
        env_fns: Any,
        shared_memory: bool = True,
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: Any = gymnasium.vector.AutoresetMode.NEXT_STEP,
        **others: Any,
    ) -> None:
        if observation_mode != "same":
            raise ConfigError("PoolVectorEnv has no observation_mode")
        for name, value in others.items():
            if value is not None:
                raise ConfigError(f"PoolVectorEnv has no {name}")
        super().__init__(*open_envs(env_fns, kind=self.kind, n_workers=2), autoreset_mode, copy)


class SyncInPlace(InPlace):
    kind = "inline"


class AsyncInPlace(InPlace):
    kind = "process"


# What pytest calls, with this file as its plugin.


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--outcomes", help="the file to write outcomes to")
    parser.addoption("--with-stoker", action="store_true", help="put Stoker's pools in place")


def pytest_configure(config: Any) -> None:
    if config.getoption("--with-stoker"):
        vector: Any = gymnasium.vector
        for ours, name in ((SyncInPlace, "SyncVectorEnv"), (AsyncInPlace, "AsyncVectorEnv")):
            ours.__name__ = name  # it is part of some tests' names
            setattr(vector, name, ours)
    config.pluginmanager.register(_Writer(Path(config.getoption("--outcomes"))))


class _Writer:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test that was called, or that did not come so far."""
        if report.when == "call" or report.outcome != "passed":
            row = {"test": report.nodeid, "outcome": report.outcome, "why": _reason(report)}
            with self._file.open("a") as out:
                out.write(json.dumps(row) + "\n")


def _reason(report: Any) -> str:
    if report.outcome == "passed":
        return ""
    if report.outcome == "skipped":
        return str(report.longrepr[-1])
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def outcomes(source: Path, *options: str) -> dict[str, dict[str, str]]:
    """Run the tests in a process of their own; what became of each, by name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.jsonl"
        file.touch()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "bench.gymnasium_tests"]
        command += ["-p", "no:cacheprovider", "--rootdir", str(source), "-c", os.devnull]
        command += ["--outcomes", str(file), *options, str(source / "tests" / "vector")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
        subprocess.run(
            command, cwd=source, env=environment, timeout=_TIME_LIMIT_S, stdout=sys.stderr
        )
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["test"]: row for row in rows}


def main() -> None:
    """Print a line a test, then the sums."""
    parser = argparse.ArgumentParser(prog="python -m bench.gymnasium_tests", description=__doc__)
    parser.add_argument("source", type=Path, help="a checkout of Gymnasium's source")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    given = parser.parse_args()
    if not (given.source / "tests" / "vector").is_dir():
        parser.error(f"{given.source} has no tests/vector; give a checkout of Gymnasium's source")
    source = given.source.resolve()
    theirs, ours = outcomes(source), outcomes(source, "--with-stoker")
    show = _as_json if given.json else _as_text
    for test, row in theirs.items():
        found = ours.get(test, {"outcome": "missing", "why": "it was not run"})
        show(test, row["outcome"], found["outcome"], found["why"])
    for name, rows in (("gymnasium", theirs), ("stoker", ours)):
        print(name, dict(Counter(row["outcome"] for row in rows.values())), file=sys.stderr)


def _as_json(test: str, gymnasium_outcome: str, outcome: str, why: str) -> None:
    row = {"test": test, "gymnasium": gymnasium_outcome, "stoker": outcome, "why": why}
    print(json.dumps(row))


def _as_text(test: str, gymnasium_outcome: str, outcome: str, why: str) -> None:
    print(f"{outcome:8} (gymnasium {gymnasium_outcome}) {test}" + (f": {why}" if why else ""))


if __name__ == "__main__":
    main()
