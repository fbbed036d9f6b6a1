"""How a command begins and ends: the GPU is woken early, and nobody is forgotten at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from stoker.cli import main, wake


class Driver:
    """Answers every call with a code of its own, 0 for most."""

    def __init__(self, **codes: int) -> None:
        self.codes, self.asked = codes, list[str]()

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> int:
            self.asked.append(name)
            return self.codes.get(name, 0)

        return call


@pytest.mark.parametrize(
    ("codes", "asked"),
    [
        ({}, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]),
        ({"cuInit": 100}, ["cuInit"]),
        ({"cuDeviceGet": 101}, ["cuInit", "cuDeviceGet"]),
    ],
)
def test_the_driver_is_asked_as_far_as_it_agrees(
    codes: dict[str, int], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(**codes)
    monkeypatch.setattr(wake.ctypes, "CDLL", lambda name: driver)
    waking = wake.wake_gpu(["--env", "CartPole-v1"])
    assert waking is not None
    waking.join()
    assert driver.asked == asked


def test_commands_that_train_wake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[list[str]] = []
    monkeypatch.setattr(main, "wake_gpu", woken.append)
    for words in (["train", "--help"], ["resume", "--help"], ["presets"]):
        with pytest.raises(SystemExit):
            main.main(words)
    assert woken == [["--help"], ["--help"]]


def test_without_a_driver_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "_DRIVER", "no-such-library.so")
    waking = wake.wake_gpu([])
    assert waking is not None
    waking.join()


@pytest.mark.parametrize(
    "arguments", [["--device", "cpu"], ["--env", "X", "--device=cpu"], ["--help"]]
)
def test_where_nobody_will_use_it_the_gpu_is_left_asleep(arguments: list[str]) -> None:
    assert wake.wake_gpu(arguments) is None


def test_a_module_is_waited_for_until_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    module, looks = ModuleType("half_imported"), list[float]()
    module.__spec__ = type("Spec", (), {"_initializing": True})()

    def rest(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            monkeypatch.setitem(sys.modules, "half_imported", module)
        if len(looks) == 6:
            module.__spec__._initializing = False  # type: ignore[union-attr]

    monkeypatch.setattr(wake.time, "sleep", rest)
    assert wake._once_imported("half_imported") is module
    assert len(looks) == 6


@pytest.mark.parametrize(("into", "code"), [("/dev/full", 1), ("a pipe nobody reads", 141)])
def test_what_could_not_be_written_is_no_success(into: str, code: int) -> None:
    words = [sys.executable, "-m", "stoker", "presets", "--json"]
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    if into == "/dev/full":
        write = os.open(into, os.O_WRONLY)
    else:
        read, write = os.pipe()
        os.close(read)
    ended = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert ended.returncode == code
    assert ("could not be written" in ended.stderr) == (into == "/dev/full")


_ENDS = """
import atexit, sys, threading, time
from stoker.cli.main import run

def late():
    time.sleep(0.2)
    print("late")

atexit.register(print, "at the end")
if sys.argv[1] == "thread":
    threading.Thread(target=late).start()
run(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("threads", "words", "code", "said"),
    [
        ("none", ["--version"], 0, ["stoker", "at the end"]),
        ("thread", ["--version"], 0, ["stoker", "late", "at the end"]),
        ("none", ["tarin"], 2, ["at the end"]),
    ],
)
def test_everybody_has_done_what_they_wanted_when_a_process_ends(
    threads: str, words: list[str], code: int, said: list[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS, threads, *words], capture_output=True, text=True
    )
    assert ended.returncode == code
    lines = ended.stdout.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))
    assert ("train" in ended.stderr) == (code == 2)
