"""What all tests share: ways to call the `stoker` command as a user would, and to have a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from fake_nvml import FakeNvml
from warm_start import WarmStart

TESTS = Path(__file__).parent
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported: loopback alone
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
hypothesis.settings.register_profile("busy", deadline=None)  # which other tests may make one miss
hypothesis.settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are for machines that have one: `pytest -m gpu` runs them alone."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True, scope="session")
def importable() -> None:
    """Subprocesses find the project and `tests/tasks.py`, besides what this one finds."""
    known = os.environ.get("PYTHONPATH")
    paths = [str(TESTS), str(TESTS.parent), *([known] if known else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """As in a run: of tests that go side by side, each has a core."""
    torch.set_num_threads(1)


@pytest.fixture
def start_stoker(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `python -m stoker WORDS` in an empty folder; `tests/tasks.py` can be imported."""

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "stoker", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def warm_start() -> Iterator[WarmStart]:
    start = WarmStart()
    yield start
    start.close()


@pytest.fixture
def stoker(
    warm_start: WarmStart, start_stoker: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m stoker WORDS` to its end, where and with what `start_stoker` does."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        if sys.platform == "linux":
            return warm_start.run(words, tmp_path, seconds=240)
        process = start_stoker(*words)
        out, error = process.communicate(timeout=240)
        return subprocess.CompletedProcess(words, process.returncode, out, error)

    return run


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """What `import pynvml` gives: one without a GPU, that answers all the same."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
