"""Trials on a Ray cluster of two machines' worth of processes, one of which dies."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="pip install 'stoker[ray]'")

from ray.cluster_utils import Cluster

from stoker.config import resolve
from stoker.errors import ConfigError
from stoker.sweep.conduct import Board, Sweep
from stoker.sweep.ledger import Ledger
from stoker.sweep.on_ray import RayEngine
from stoker.sweep.plan import Plan
from stoker.sweep.space import understand
from stoker.train.signals import StopRequest

pytestmark = pytest.mark.alone  # a cluster of several machines' processes

WAITS = '''
import os
import time
from pathlib import Path
from tasks import Count

class Waits(Count):
    """After 300 steps it goes on once a file is there."""

    made = 0

    def __init__(self, go):
        super().__init__()
        self.go = Path(go)

    def step(self, action):
        self.made += 1
        if self.made == 300:
            self.go.with_name(f"{os.getpid()}.waits").touch()
        while self.made > 300 and not self.go.exists():
            time.sleep(0.01)
        return super().step(action)
'''


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun = 0

    def says(self, line: str) -> None:
        self.lines.append(line)

    def shows(self, board: Board) -> None:
        self.begun = sum(each.seen_at is not None for each in board.running)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    made.shutdown()


def test_trials_of_a_machine_that_dies_come_back(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waits.py").write_text(WAITS)
    first, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    go = tmp_path / "go"
    given = {"env": "waits:Waits", "env_kwargs": {"go": str(go)}, "n_steps": 64, "n_epochs": 1}
    base = resolve(
        {**given, "device": "cpu", "network_arch": [8], "timesteps": 640, "pool": "inline"}
    )
    space = understand({"learning_rate": [1e-3, 1e-4]}, base)
    plan = Plan(base.flat(), space, (0,), None, 3, "none")
    ledger, heard = Ledger.begin(f"sqlite:///{tmp_path / 'study.db'}", "s", plan, 3), Heard()
    sweep = Sweep(ledger, RayEngine(2, False, heard.says), tmp_path, "me", heard, StopRequest(None))

    def waiting() -> list[int]:
        pids = [int(path.stem) for path in tmp_path.glob("*.waits")]
        return [pid for pid in pids if psutil.pid_exists(pid)]

    both: list[int] = []

    def disturb() -> None:
        deadline = time.monotonic() + 60
        while (len(waiting()) < 2 or heard.begun < 2) and time.monotonic() < deadline:
            time.sleep(0.1)
        both.append(heard.begun)
        daemon = first.all_processes["raylet"][0].process.pid
        there = psutil.Process(daemon).children(recursive=True)
        both.append(len({*waiting()} & {process.pid for process in there}))
        cluster.remove_node(first, allow_graceful=False)
        for process in there:  # which would outlive their machine, and might still answer
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        go.touch()

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    sweep.run()
    disturbing.join()
    assert both == [2, 1]
    assert heard.lines[0] == "Ray: 2 machines, 2 runs at once."
    states = [row.state for row in ledger.rows()]
    lost = states.count("failed")  # one that trained there, and what was sent there before Ray knew
    assert 1 <= lost <= 3
    assert states.count("complete") == 3 == len(states) - lost
    assert sum("it is run again" in line for line in heard.lines) == lost


def test_without_a_cluster_it_says_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")  # other tests may have a cluster
    with (
        pytest.raises(ConfigError, match="No Ray cluster was found"),
        RayEngine(1, False, print).open(),
    ):
        pass
