"""`stoker sweep`: real trials, killed, stopped and gone on with, on a CPU."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_cli_pack import DEADLINE_S, GATED, until

from stoker.cli.main import main
from stoker.cli.sweep_view import draw
from stoker.config import resolve
from stoker.runs.process import is_alive
from stoker.sweep.conduct import Board, Running
from stoker.sweep.course import Course
from stoker.sweep.ledger import Row, Taken
from stoker.sweep.plan import Plan
from stoker.sweep.space import understand

Start = Callable[..., "subprocess.Popen[str]"]
Stoker = Callable[..., "subprocess.CompletedProcess[str]"]

SPACE = "learning_rate: {low: 1e-4, high: 1e-2, log: true}\nn_steps: [64, 128]\n"
SWEEP = (
    "sweep --env gated:Gated --space space.yaml --name s --trials 3 --jobs 2 --seeds 1 "
    "--timesteps 640 --pool inline --device cpu --n-envs 1 --batch-size 64 --n-epochs 1 "
    "--network-arch 8 --pruner none"
)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Where a sweep called s is to lie."""
    (tmp_path / "gated.py").write_text(GATED)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path / "runs/s"


def at_the_gate(sweep: Path, *trials: int) -> list[int]:
    """The processes of these trials, once all have come as far as they can."""
    found = []
    for trial in trials:
        status = sweep / f"trials/trial-{trial:04d}-s0/status.json"
        told = json.loads(status.read_text()) if status.exists() else {}
        if not told.get("env_steps", 0) >= 128:
            return []
        found.append(told["pid"])
    return found


def states(found: dict[str, Any]) -> list[int]:
    return [found[name] for name in ("complete", "pruned", "running", "waiting")]


def test_whoever_is_killed_every_trial_is_done_once(
    sweep: Path, start_stoker: Start, stoker: Stoker
) -> None:
    """Two trials are killed, then the sweep itself."""
    process = start_stoker(*SWEEP.split(), "--json")
    until(lambda: at_the_gate(sweep, 0, 1), process)
    for trial in at_the_gate(sweep, 0, 1):
        os.kill(trial, signal.SIGKILL)
    until(lambda: len(list((sweep / "trials").glob("*/status.json"))) == 4, process)
    again = sorted(int(each.parent.name[6:10]) for each in sweep.glob("trials/*/status.json"))[2:]
    until(lambda: at_the_gate(sweep, *again), process)
    trials = at_the_gate(sweep, *again)
    process.kill()
    _, error = process.communicate()
    assert error.count("killed by SIGKILL; it is run again") == 2
    (sweep.parent.parent / "go").touch()
    until(lambda: not any(map(is_alive, trials)))

    ended = stoker("sweep", "--name", "s", "--resume", "--jobs", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["state"] == "finished"
    assert states(found) == [3, 0, 0, 0]
    assert found["failed"] == 4
    done = [row for row in found["rows"] if row["state"] == "complete"]
    assert sorted(row["place"] for row in done) == [0, 1, 2]
    drawn = [row["drawn"] for row in done]
    assert all(row["drawn"] in drawn for row in found["rows"])  # what was killed was run again

    shown = stoker("sweep", "show", "s")
    assert "3 of 3 trials done" in shown.stdout
    command = re.search(r"stoker (train --config \S+ --seed 1)", shown.stdout)
    assert command is not None
    trained = stoker(*command[1].split(), "--json")
    assert trained.returncode == 0, trained.stderr
    best = found["best"]["drawn"]
    config = (sweep.parent / json.loads(trained.stdout)["run"].split("/")[-1]) / "config.yaml"
    assert f"learning_rate: {best['learning_rate']}" in config.read_text()
    assert f"n_steps: {best['n_steps']}" in config.read_text()

    page = (sweep / "sweep.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page.split("<script>")[0])
    assert '"history"' in page


def test_ctrl_c_ends_all_and_leaves_a_sweep_that_goes_on(
    sweep: Path, start_stoker: Start, stoker: Stoker
) -> None:
    process = start_stoker(*SWEEP.replace("--jobs 2", "--jobs 1").split())
    until(lambda: at_the_gate(sweep, 0), process)
    (trial,) = at_the_gate(sweep, 0)
    process.send_signal(signal.SIGINT)
    (sweep.parent.parent / "go").touch()
    out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, error
    assert "Traceback" not in out + error
    assert "stoker sweep --name s --resume" in error
    assert not is_alive(trial)
    shown = json.loads(stoker("sweep", "show", "s", "--json").stdout)
    assert states(shown) == [0, 0, 0, 3]
    assert shown["best_file"] is None


def test_time_is_up_when_the_budget_is(sweep: Path, stoker: Stoker) -> None:
    (sweep.parent.parent / "go").touch()
    words = SWEEP.replace("--timesteps 640", "--budget 0.5s").replace("--trials 3", "--trials 1")
    ended = stoker(*words.split(), "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    (row,) = found["rows"]
    assert row["state"] == "complete"
    last = (sweep / "trials/trial-0000-s0/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["wall_s"] > 0.5  # it was trained past that
    assert 0 < row["env_steps"] < json.loads(last)["env_steps"]  # which does not count
    best = (sweep / "best.yaml").read_text()
    assert f"timesteps: {row['env_steps']}" in best
    assert "lr_schedule: constant" in best


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--space none.yaml", ["Cannot read the space file none.yaml"]),
        ("--space wrong.yaml", ["no setting 'learning_rat'", "low 9 is above high 3"]),
        ("--budget soon", ["budget: 'soon' is no length of time"]),
        ("--budget 1m --timesteps 10k", ["budget and timesteps exclude each other"]),
        ("--trials -1 --seeds 0", ["trials is -1", "seeds is 0"]),
        ("--jobs 9999", ["each run needs one"]),
        ("--name ../up", ["cannot be a folder's name"]),
        ("--resume", ["say which with --name"]),
        ("--resume --name none", ["There is no sweep at runs/none"]),
        ("--storage postgresql://me:secret@127.0.0.1:1/x", ["cannot be used"]),
        ("--storage nonsense", ["The storage nonsense cannot be used"]),
        ("--space fine.yaml --lr 1e-3", ["learning_rate is in the space and among the settings"]),
        ("--population 8 --space fine.yaml", ["such as 9", "cannot differ in n_steps; only in"]),
        ("show none", ["There is no sweep at runs/none"]),
    ],
)
def test_a_mistake_is_explained_with_exit_code_2(
    words: str,
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.yaml").write_text("learning_rat: [1, 2]\nn_epochs: {low: 9, high: 3}\n")
    (tmp_path / "fine.yaml").write_text(SPACE)
    with pytest.raises(SystemExit) as left:
        main(["sweep", *words.split()])
    out, error = capsys.readouterr()
    assert left.value.code == 2
    assert "Traceback" not in out + error
    assert "secret" not in out + error
    assert not list(tmp_path.glob("runs/*"))  # so that the name is free for another try
    for line in says:
        assert line in error


def test_a_mistake_that_no_draw_mends_ends_it_and_it_goes_on_as_it_began(
    sweep: Path, stoker: Stoker
) -> None:
    ended = stoker(*SWEEP.replace("gated:Gated", "gated:NoSuchThing").split())
    assert ended.returncode == 2
    assert "A trial could not begin" in ended.stderr
    assert "NoSuchThing" in ended.stderr
    other = stoker(*SWEEP.split(), "--resume")
    assert other.returncode == 2
    assert "goes on as it began, and base would not be the same" in other.stderr
    fewer = stoker("sweep", "--name", "s", "--resume", "--trials", "1")
    assert fewer.returncode == 2
    assert "more, not fewer" in fewer.stderr
    taken = stoker(*SWEEP.split())
    assert taken.returncode == 2
    assert "runs/s exists already" in taken.stderr


def test_a_screen_shows_what_runs_and_what_is_best() -> None:
    base = resolve({})
    plan = Plan(base.flat(), understand({"gamma": [0.9, 0.99]}, base), (0, 1), 60.0, 5)
    row = Row(0, 0, "complete", 12.34, {"gamma": 0.9}, {"0": 12.34}, 100, None, 1.0)
    running = Running((Taken(1, 1, {"gamma": 0.99}, None),), Course(plan.horizon))
    console = Console(width=120, file=io.StringIO())
    console.print(draw(Board(plan, [row], [running])))
    shown = console.file.getvalue()
    assert "1 of 5 trials done" in shown
    assert "best reward 12.3 (trial 0)" in shown
    assert "1 of 2" in shown
    assert "unknown" in shown
