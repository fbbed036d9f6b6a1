"""Resume is resume: stopped and continued, a run ends with the bits it would have ended with."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.errors import CheckpointError, RunError
from stoker.runs import checkpoint as checkpoints
from stoker.runs.folder import RunFolder
from stoker.train.start import resume

Start = Callable[..., subprocess.Popen[str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


def checksums(run: Path) -> tuple[dict[str, str], dict[str, object]]:
    """A checksum of every tensor of the newest checkpoint, and its counters but for the clock."""
    _, saved = checkpoints.load_newest(run / "checkpoints")
    counters = saved.state["counters"]
    del counters["wall_s"]
    rows = {f"{place}.{k}": v for place, part in enumerate(saved.rows) for k, v in part.items()}
    sums = {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for name, tensor in (saved.tensors | rows).items()
    }
    return sums, counters


def wait_for_iterations(process: subprocess.Popen[str], run: Path, count: int) -> None:
    """Until the run has logged `count` iterations."""
    log = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and log.read_text().count("\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {count} iterations: {process.communicate()}")


@pytest.mark.parametrize(
    "flags",
    [
        "--env CartPole-v1 --timesteps 5120 --n-steps 256",
        "--env Pendulum-v1 --timesteps 6k --n-envs 3 --n-steps 100 --batch-size 100 "
        "--pool process --n-workers 2 --target-kl 0.02 --clip-schedule linear",
        "--env tasks:Masked --timesteps 8k --n-envs 4 --n-steps 100 --batch-size 100 "
        "--pool inline --shared-trunk --no-normalize-reward --ent-coef 0.01",
        "--algo dqn --env CartPole-v1 --timesteps 10240 --n-envs 4 --n-steps 128 --per "
        "--n-step-return 3 --learning-starts 512 --buffer-size 4096 --log-every 1",
        "--algo dqn --env CartPole-v1 --timesteps 10240 --n-envs 4 --n-steps 128 --normalize-obs "
        "--learning-starts 512 --log-every 1 --pool process --n-workers 2 --collect interleave",
    ],
    ids=["cartpole", "pendulum-processes", "masked", "dqn", "dqn-interleaved"],
)
def test_a_run_stopped_and_resumed_ends_with_the_same_bits(
    flags: str, start_stoker: Start, stoker: Run, tmp_path: Path
) -> None:
    # In step, in one pool: timings choose it otherwise, and groups act in batches of other sizes.
    words = ["train", *flags.split(), "--device", "cpu", "--seed", "7", "--eval-episodes", "0"]
    words += [] if "--collect" in flags else ["--collect", "step"]
    straight = stoker(*words, "--run-name", "straight")
    assert straight.returncode == 0, straight.stderr
    broken = start_stoker(*words, "--run-name", "broken")
    wait_for_iterations(broken, tmp_path / "runs" / "broken", 10)
    broken.send_signal(signal.SIGTERM)
    broken.communicate(timeout=60)
    assert broken.returncode == 143
    status = json.loads((tmp_path / "runs" / "broken" / "status.json").read_text())
    assert status["state"] == "stopped"
    assert 0 < status["time/iterations"] < 20
    resumed = stoker("resume", "broken")
    assert resumed.returncode == 0, resumed.stderr
    assert "could not be brought back" not in resumed.stderr
    tensors, counters = checksums(tmp_path / "runs" / "broken")
    expected_tensors, expected_counters = checksums(tmp_path / "runs" / "straight")
    assert counters == expected_counters
    assert counters["iteration"] == 20
    assert tensors == expected_tensors
    assert len(tensors) > 20
    lines = (tmp_path / "runs" / "broken" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["env_steps"] for line in lines]
    assert steps == sorted(set(steps)), "a resumed run records no step twice"


def test_an_overlapped_run_is_saved_when_it_is_stopped_and_goes_on(
    start_stoker: Start, stoker: Run, tmp_path: Path
) -> None:
    """A rollout that was under way is gathered again from its beginning: no step is lost."""
    words = "train --env CartPole-v1 --timesteps 16384 --n-envs 4 --n-steps 64 --batch-size 64"
    more = "--pool process --n-workers 2 --collect overlap --device cpu --eval-episodes 0"
    broken = start_stoker(*words.split(), *more.split(), "--run-name", "broken")
    run = tmp_path / "runs" / "broken"
    wait_for_iterations(broken, run, 5)
    broken.send_signal(signal.SIGTERM)
    _, error = broken.communicate(timeout=60)
    assert broken.returncode == 143
    assert "Traceback" not in error
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "stopped"
    _, saved = checkpoints.load_newest(run / "checkpoints")
    stopped_at = saved.state["counters"]["env_steps"]
    assert stopped_at == status["env_steps"] > 0
    resumed = stoker("resume", "broken")
    assert resumed.returncode == 0, resumed.stderr
    assert "could not be brought back" not in resumed.stderr
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["env_steps"] for line in lines]
    assert steps == sorted(set(steps)), "a resumed run records no step twice"
    assert steps[-1] >= 16384
    # Its first rollout after the stop is gathered under the weights that were saved.
    lags = {line["env_steps"]: line["lag/mean"] for line in lines if "lag/mean" in line}
    after = min(step for step in steps if step > stopped_at)
    assert lags[after] == 0.0
    assert {lag for step, lag in lags.items() if after < step < 16384} == {1.0}


def test_a_run_that_dropped_steps_is_not_done_until_it_has_made_them(
    stoker: Run, tmp_path: Path
) -> None:
    """Iterations count rollouts, of which late environments fill less than all."""
    words = ["--env", "tasks:Count", "--timesteps", "512", "--device", "cpu", "--n-steps", "256"]
    assert stoker("train", *words, "--run-name", "short").returncode == 0
    run = tmp_path / "runs" / "short"
    _, saved = checkpoints.load_newest(run / "checkpoints")
    assert saved.state["counters"]["iteration"] == 2
    for other in (run / "checkpoints").iterdir():
        shutil.rmtree(other)
    counters = saved.state["counters"] | {"env_steps": 500, "saved_at": 500, "late_steps": 12}
    target = run / "checkpoints" / checkpoints.step_name(500)
    checkpoints.save(target, saved._replace(state=saved.state | {"counters": counters}))
    resumed = stoker("resume", "short")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((run / "status.json").read_text())["env_steps"] == 756


def test_environments_that_are_not_deterministic_are_reported(stoker: Run, tmp_path: Path) -> None:
    words = ["--env", "tasks:Forgetful", "--timesteps", "512", "--device", "cpu"]
    assert stoker("train", *words, "--run-name", "odd").returncode == 0
    resumed = stoker("resume", "odd", "--timesteps", "1024")
    assert resumed.returncode == 0
    assert "1 of 1 environments could not be brought back" in resumed.stderr
    status = json.loads((tmp_path / "runs" / "odd" / "status.json").read_text())
    assert status["env_steps"] == 1024


def test_a_finished_run_can_be_given_more_steps(stoker: Run, tmp_path: Path) -> None:
    words = ["--env", "CartPole-v1", "--timesteps", "512", "--device", "cpu"]
    assert stoker("train", *words, "--run-name", "more").returncode == 0
    assert stoker("resume", "more", "--timesteps", "1k").returncode == 0
    assert RunFolder.open(tmp_path / "runs" / "more").read_config()["timesteps"] == 1000
    assert RunFolder.open(tmp_path / "runs" / "more").read_status()["env_steps"] == 1024


@pytest.mark.parametrize("timesteps", [[], ["--timesteps", "100"]])
def test_a_run_that_is_done_says_so_and_stays_as_it_is(
    timesteps: list[str], stoker: Run, tmp_path: Path
) -> None:
    words = ["--env", "tasks:Count", "--timesteps", "512", "--device", "cpu"]
    assert stoker("train", *words, "--run-name", "done").returncode == 0
    run = tmp_path / "runs" / "done"
    before = [(run / name).read_text() for name in ("status.json", "config.yaml")]
    again = stoker("resume", "done", *timesteps)
    assert again.returncode == 2
    assert "has 512 steps already" in again.stderr
    assert [(run / name).read_text() for name in ("status.json", "config.yaml")] == before


def test_an_environment_that_fails_leaves_a_checkpoint_of_the_last_whole_iteration(
    stoker: Run, tmp_path: Path
) -> None:
    words = "--env tasks:Failing --timesteps 2k --n-steps 64 --device cpu --eval-episodes 0"
    words += " --max-faults 0"
    (tmp_path / "fail").touch()
    failed = stoker("train", *words.split(), "--run-name", "failing")
    assert failed.returncode == 1
    assert "out of ideas" in failed.stderr
    run = tmp_path / "runs" / "failing"
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    _, saved = checkpoints.load_newest(run / "checkpoints")
    assert saved.state["counters"]["env_steps"] == 1472  # it fails at step 1,496
    (tmp_path / "fail").unlink()
    assert stoker("resume", "failing").returncode == 0
    whole = stoker("train", *words.split(), "--run-name", "whole")
    assert whole.returncode == 0
    assert checksums(run)[0] == checksums(tmp_path / "runs" / "whole")[0]


def test_a_run_that_is_still_running_is_not_resumed(start_stoker: Start, tmp_path: Path) -> None:
    words = ["--env", "CartPole-v1", "--timesteps", "10M", "--device", "cpu"]
    process = start_stoker("train", *words, "--run-name", "busy")
    try:
        wait_for_iterations(process, tmp_path / "runs" / "busy", 1)
        with pytest.raises(RunError, match="still running"):
            resume(tmp_path / "runs" / "busy")
    finally:
        process.kill()
        process.communicate()


def test_an_environment_that_changed_its_spaces_is_refused(stoker: Run, tmp_path: Path) -> None:
    words = ["--env", "tasks:Count", "--timesteps", "256", "--device", "cpu"]
    assert stoker("train", *words, "--run-name", "changed").returncode == 0
    folder = RunFolder.open(tmp_path / "runs" / "changed")
    folder.write_config({**folder.read_config(), "env": "CartPole-v1"})
    with pytest.raises(CheckpointError, match="has changed since"):
        resume(folder.path, timesteps=512)
