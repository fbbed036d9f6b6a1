"""Waking the GPU early: what the driver is asked, and that nobody minds if there is none."""

from __future__ import annotations

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
