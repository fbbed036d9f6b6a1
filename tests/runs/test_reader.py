from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stoker.runs.folder import RunFolder
from stoker.runs.reader import list_runs, read_metrics

ROOT = Path(__file__).parents[2]


def made_run(runs_dir: Path, name: str, **status: Any) -> RunFolder:
    run = RunFolder.create(runs_dir, name)
    run.write_config({"env": "CartPole-v1"})
    run.write_status(status)
    return run


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_reader_imports_without_torch() -> None:
    code = "import sys, stoker.runs.reader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_run_is_summarised_from_its_status(tmp_path: Path) -> None:
    figures = {"env_steps": 100, "sps": 50.5, "wall_s": 2.0}
    rewards = {"rollout/ep_rew_mean": 9.5, "eval/mean_reward": 11.0}
    made_run(tmp_path, "done", state="finished", **figures, **rewards)
    (summary,) = list_runs(tmp_path)
    assert summary[:9] == (
        "done", tmp_path / "done", "finished", "CartPole-v1", 100, 50.5, 2.0, 9.5, 11.0
    )  # fmt: skip
    assert summary.updated is not None
    assert abs(time.time() - summary.updated) < 60


def test_what_is_unknown_is_none_and_never_zero(tmp_path: Path) -> None:
    made_run(tmp_path, "new", state="running", pid=os.getpid(), sps=float("nan"))
    (summary,) = list_runs(tmp_path)
    assert summary.state == "running"
    assert summary[4:9] == (None,) * 5


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    saved = tmp_path / "saved"  # by PPO.save: a checkpoint, with settings of its own
    saved.mkdir()
    (saved / "config.yaml").write_text("env: CartPole-v1")
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "nothing") == []
    assert list_runs(tmp_path / "file") == []


def test_a_damaged_file_makes_figures_unknown(tmp_path: Path) -> None:
    (made_run(tmp_path, "a", state="finished").path / "status.json").write_text('{"state": "fin')
    (made_run(tmp_path, "b", state="finished").path / "config.yaml").write_text("[")
    made_run(tmp_path, "c", state=3, env_steps="many")
    a, b, c = list_runs(tmp_path)
    assert (a.state, a.env) == ("unknown", "CartPole-v1")
    assert (b.state, b.env) == ("finished", None)
    assert (c.state, c.env_steps) == ("unknown", None)


def test_a_running_run_without_its_process_has_died(tmp_path: Path) -> None:
    made_run(tmp_path, "a", state="running", pid=dead_pid())
    made_run(tmp_path, "b", state="running", pid=os.getpid(), host=socket.gethostname())
    made_run(tmp_path, "c", state="running", pid=dead_pid(), host="another-machine")
    made_run(tmp_path, "d", state="finished", pid=dead_pid())
    made_run(tmp_path, "e", state="running", pid=10**30)
    states = [summary.state for summary in list_runs(tmp_path)]
    assert states == ["died", "running", "running", "finished", "died"]


def test_a_far_machine_is_trusted_for_five_minutes(tmp_path: Path) -> None:
    for name, age in (("new", 240), ("old", 360)):
        run = made_run(tmp_path, name, state="running", pid=1, host="another-machine")
        then = time.time() - age
        os.utime(run.path / "status.json", (then, then))
    assert [summary.state for summary in list_runs(tmp_path)] == ["running", "died"]


def test_the_lock_has_the_last_word(tmp_path: Path) -> None:
    far = made_run(tmp_path, "a", state="running", pid=1, host="another-machine")
    here = made_run(tmp_path, "b", state="running", pid=os.getpid())
    resumed = made_run(tmp_path, "c", state="finished")
    fresh = made_run(tmp_path, "d")
    locks = [run.lock() for run in (far, here, resumed, fresh)]
    assert [summary.state for summary in list_runs(tmp_path)] == ["running"] * 4
    for lock in locks:
        lock.close()
    states = [summary.state for summary in list_runs(tmp_path)]
    assert states == ["died", "died", "finished", "unknown"]


def test_looking_at_a_run_changes_nothing_in_it(tmp_path: Path) -> None:
    run = made_run(tmp_path, "a", state="running", pid=os.getpid())
    before = sorted(os.listdir(run.path))
    list_runs(tmp_path)
    assert sorted(os.listdir(run.path)) == before


def test_a_zombie_and_a_successor_with_the_same_pid_are_not_the_run(tmp_path: Path) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    made_run(tmp_path, "a", state="running", pid=zombie.pid)
    reused = made_run(tmp_path, "b", state="running", pid=os.getpid())
    os.utime(reused.path / "status.json", (1e9, 1e9))  # written long before this process began
    assert [summary.state for summary in list_runs(tmp_path)] == ["died", "died"]
    zombie.wait()


def test_metrics_are_read_past_torn_and_damaged_lines(tmp_path: Path) -> None:
    run = made_run(tmp_path, "a", state="running")
    assert read_metrics(run.path) == []
    lines = ['{"env_steps":1,"x":0.5}', "garbage", '{"env_steps":NaN}', '{"env_steps":2}']
    (run.path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"env_steps":3,"x":1')
    expected = [{"env_steps": 1, "x": 0.5}, {"env_steps": 2}]
    assert read_metrics(run.path) == expected
