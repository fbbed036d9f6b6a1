"""`stoker pack`: real jobs, killed, stopped and wrong, on a CPU."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from stoker.cli.main import main
from stoker.cli.pack_view import draw
from stoker.jobs.entry import Board, Entry
from stoker.jobs.words import make_job
from stoker.runs import checkpoint as checkpoints
from stoker.runs.process import is_alive

Start = Callable[..., "subprocess.Popen[str]"]

GATED = '''
import time
from pathlib import Path
import gymnasium
import numpy as np

class Gated(gymnasium.Env):
    """After 300 steps it goes on once there is a file `go`, and not before."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.made += 1
        while self.made > 300 and not Path("go").exists():
            time.sleep(0.01)
        return np.zeros(1, np.float32), 1.0, self.made % 16 == 0, False, {}
'''
TRAIN = (
    "train --env gated:Gated --pool inline --device cpu --n-envs 1 --n-steps 128 --batch-size 64 "
    "--n-epochs 1 --network-arch 8 --checkpoint-every 128 --eval-episodes 0"
)
SHORT, LONG = f"{TRAIN} --timesteps 640", f"{TRAIN} --timesteps 10M"
DEADLINE_S = 90


def until(true: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until that is so, while the process runs."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it has ended: {process.communicate()}")
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "gated.py").write_text(GATED)
    return tmp_path / "runs"


def pids(runs: Path, *names: str) -> list[int]:
    return [json.loads((runs / name / "status.json").read_text())["pid"] for name in names]


def at_the_gate(runs: Path, *names: str) -> bool:
    """Whether each has saved its first 256 steps; it then waits for the file."""
    return all((runs / name / "checkpoints/step-000000000256").exists() for name in names)


def test_a_job_that_is_killed_goes_on_from_its_checkpoint(runs: Path, start_stoker: Start) -> None:
    words = f"pack -n 2 --name p --no-baseline --at-once 2 --json -- {SHORT} --seed 5"
    process = start_stoker(*words.split())
    until(lambda: at_the_gate(runs, "p-s5", "p-s6"), process)
    (killed,) = pids(runs, "p-s6")
    os.kill(killed, signal.SIGKILL)
    until(lambda: pids(runs, "p-s6") != [killed], process)
    (runs.parent / "go").touch()
    out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, error
    assert "killed by SIGKILL" in error
    assert "p-s6: goes on from step 256 (restart 1 of 3" in error
    report = json.loads(out)
    assert report["state"] == "finished"
    assert report == json.loads((runs / "p/report.json").read_text())
    first, second = report["jobs"]
    assert (first["restarts"], second["restarts"]) == (0, 1)
    assert not set(first["cores"]) & set(second["cores"])
    for job, seed in ((first, 5), (second, 6)):
        assert (job["state"], job["env_steps"]) == ("finished", 640)
        _, saved = checkpoints.load_newest(Path(runs.parent / job["run"]) / "checkpoints")
        assert saved.state["counters"]["env_steps"] == 640
        assert saved.config["seed"] == seed


def test_ctrl_c_has_every_job_save_and_leave(runs: Path, start_stoker: Start) -> None:
    words = f"pack -n 3 --name p --no-baseline --at-once 2 -- {LONG}"
    process = start_stoker(*words.split())
    until(lambda: at_the_gate(runs, "p-s0", "p-s1"), process)
    process.send_signal(signal.SIGINT)
    (runs.parent / "go").touch()
    out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, error
    assert "Traceback" not in out + error
    for name in ("p-s0", "p-s1"):
        status = json.loads((runs / name / "status.json").read_text())
        assert status["state"] == "stopped"
        _, saved = checkpoints.load_newest(runs / name / "checkpoints")
        assert saved.state["counters"]["env_steps"] == status["env_steps"] >= 256
        assert f"`stoker resume runs/{name}`" in out
    assert not (runs / "p-s2").exists()
    assert "p-s2 stopped: it had not begun" in out


def test_no_job_outlives_a_packer_that_is_killed(runs: Path, start_stoker: Start) -> None:
    process = start_stoker(*f"pack --no-baseline -- {LONG} --run-name orphan".split())
    until(lambda: at_the_gate(runs, "orphan"), process)
    (job,) = pids(runs, "orphan")
    process.kill()
    process.communicate()
    (runs.parent / "go").touch()
    until(lambda: not is_alive(job))
    status = json.loads((runs / "orphan/status.json").read_text())
    assert status["state"] == "stopped"
    _, saved = checkpoints.load_newest(runs / "orphan/checkpoints")
    assert saved.state["counters"]["env_steps"] == status["env_steps"] >= 256


def test_a_job_with_a_mistake_fails_and_the_others_go_on(runs: Path, start_stoker: Start) -> None:
    (runs.parent / "go").touch()
    (runs.parent / "jobs.yaml").write_text(
        "- [train, --no-such-flag, 3, --run-name, wrong]\n"
        "- {env: gated:Gated, pool: inline, device: cpu, n_envs: 1, n_steps: 64, batch_size: 64,\n"
        "   n_epochs: 1, network_arch: [8], timesteps: 128, eval_episodes: 0, run_name: right}\n"
    )
    process = start_stoker("pack", "jobs.yaml", "--at-once", "2", "--json", "--name", "p")
    out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, error
    wrong, right = json.loads(out)["jobs"]
    assert (wrong["state"], wrong["exit_code"], wrong["restarts"]) == ("failed", 2, 0)
    assert (right["state"], right["env_steps"]) == ("finished", 128)
    assert "What one job makes alone is unknown: it left with 2" in error
    assert "--no-such-flag" in error  # of the job's last lines
    assert "--no-such-flag" in (runs / "p/wrong.log").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "Say what to train"),
        ("jobs.yaml -- train", "not both"),
        ("jobs.yaml -n 2", "a file lists every job"),
        ("none.yaml", "Cannot read the job file none.yaml"),
        ("-n 0 --restarts -1 -- train", "-n is 0"),
        ("--name ../up -- train", "cannot be a folder's name"),
        ("--baseline-for nan -- train", "baseline_for is nan"),
        ("--at-once 9999 -n 9999 --no-baseline -- train", "cores; each job needs one"),
        ("--mps on --no-baseline -n 2 -- train --device cpu", "mps is on, but no"),
        ("-- monitor", "A job begins with 'monitor'"),
    ],
)
def test_a_mistake_is_explained_with_exit_code_2(
    words: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["pack", *words.split()])
    out, error = capsys.readouterr()
    assert left.value.code == 2
    assert says in error
    assert "Traceback" not in out + error


def test_a_screen_shows_every_job_and_unknown_where_it_is_so() -> None:
    job = make_job(["train", "--run-name", "mine"], "unused", "runs")
    console = Console(width=120, file=io.StringIO())
    console.print(draw(Board([Entry(job, Path("mine.log"))], None, None)))
    shown = console.file.getvalue()
    assert "0 of 1 jobs train" in shown
    assert "mine" in shown
    assert "queued" in shown
    assert "together unknown" in shown
    assert "GPU busy unknown" in shown
