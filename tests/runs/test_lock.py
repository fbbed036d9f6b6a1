from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import RunError
from stoker.runs import lock as lock_file
from stoker.runs.folder import RunFolder
from stoker.runs.lock import is_locked
from stoker.runs.reader import summarise

ROOT = Path(__file__).parents[2]
TRAINER = """
import os, subprocess, sys, time
from pathlib import Path
from stoker.runs.folder import RunFolder

lock = RunFolder(Path(sys.argv[1])).lock()
RunFolder(Path(sys.argv[1])).write_status({"state": "running", "pid": os.getpid()})
survivor = 0
if sys.argv[2] == "program":
    survivor = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL).pid
elif sys.argv[2] == "fork":
    survivor = os.fork()
if sys.argv[2] != "fork" or survivor:
    print(survivor, flush=True)
time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "runs", "walker")
    folder.write_config({"env": "Walker"})
    return folder


@pytest.fixture
def trainers() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be killed when the test is over."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start_trainer(run: RunFolder, child: str = "none") -> tuple[subprocess.Popen[str], int]:
    """A process that holds the lock of `run`, and the pid of its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(run.path), child],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_second_taker_is_told_who_has_it(
    run: RunFolder, trainers: list[subprocess.Popen[str]]
) -> None:
    trainer, _ = start_trainer(run)
    trainers.append(trainer)
    with pytest.raises(RunError) as refused:
        run.lock()
    assert str(refused.value) == (
        f"The run walker is still running (process {trainer.pid} on {socket.gethostname()}); stop "
        "it before resuming it."
    )
    assert summarise(run.path).state == "running"
    trainer.kill()
    trainer.wait()
    assert summarise(run.path).state == "died"
    with run.lock():
        assert summarise(run.path).state == "running"


def test_it_is_held_until_closed_and_may_be_closed_twice(run: RunFolder) -> None:
    lock = run.lock()
    for _ in range(2):
        with pytest.raises(RunError, match=rf"process {os.getpid()} on"):
            run.lock()
    lock.close()
    with run.lock():
        lock.close()
        assert is_locked(run.path)
    assert is_locked(run.path) is False


def test_it_is_let_go_when_the_block_raises(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.lock():
        _ = 1 / 0
    assert is_locked(run.path) is False


@pytest.mark.parametrize("child", ["program", "fork"])
def test_a_child_that_outlives_the_trainer_does_not_keep_it(run: RunFolder, child: str) -> None:
    trainer, survivor = start_trainer(run, child)
    try:
        assert is_locked(run.path)
        trainer.kill()
        trainer.wait()
        os.kill(survivor, 0)
        deadline = time.monotonic() + 10  # the child may not have run at all yet
        while is_locked(run.path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_locked(run.path) is False
        run.lock().close()
    finally:
        trainer.kill()
        trainer.wait()
        os.kill(survivor, signal.SIGKILL)
        assert trainer.stdout is not None
        trainer.stdout.close()


def test_readers_that_look_never_keep_a_trainer_out(run: RunFolder) -> None:
    run.lock().close()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_locked(run.path)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            with run.lock():
                assert is_locked(run.path)
    finally:
        over.set()
        for reader in readers:
            reader.join()


def test_a_reader_that_looks_right_now_is_waited_for(run: RunFolder) -> None:
    run.lock().close()
    reader = os.open(run.path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    closing = threading.Timer(0.1, os.close, [reader])
    closing.start()
    with run.lock():
        closing.join()
        assert is_locked(run.path)


@pytest.mark.parametrize("refusal", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_without_locks_is_done_without(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(fcntl, "flock", flock)
    with run.lock(), run.lock():
        assert is_locked(run.path) is None
    run.write_status({"state": "running", "pid": os.getpid()})
    assert summarise(run.path).state == "running", "the pid must tell where no lock does"


def test_without_fcntl_nothing_is_made(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_file, "fcntl", None)
    with run.lock(), run.lock():
        assert is_locked(run.path) is None
    assert not (run.path / ".lock").exists()


def test_a_full_disk_does_not_keep_a_run_from_its_start(small_disk: Any) -> None:
    run = RunFolder.create(small_disk.path, "walker")
    small_disk.fill()
    with run.lock():
        assert is_locked(run.path) is not False, "held, or not to be had for want of room"


def test_a_run_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"Cannot lock the run gone: .*No such file"):
        RunFolder(tmp_path / "gone").lock()
    assert not any(tmp_path.iterdir())


def test_a_link_or_a_pipe_in_its_place_is_refused(run: RunFolder, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run.path / ".lock").symlink_to(precious)
    with pytest.raises(RunError, match="Cannot lock the run walker"):
        run.lock()
    assert precious.read_text() == "mine"
    (run.path / ".lock").unlink()
    os.mkfifo(run.path / ".lock")
    with pytest.raises(RunError, match="not a regular file"):
        run.lock()
    started = time.monotonic()
    assert is_locked(run.path) is None
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"1", b"x y\n", b"1 \x1b[2J\n", b"9" * 999])
def test_what_else_the_file_may_say_is_not_repeated(run: RunFolder, text: bytes) -> None:
    with run.lock():
        (run.path / ".lock").write_bytes(text)
        with pytest.raises(RunError, match="The run walker is still running; stop it"):
            run.lock()
