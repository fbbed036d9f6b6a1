"""A run on a GPU says what the GPU did: known figures alone, and means of the right time."""

from __future__ import annotations

import io
import json
import time
import types
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
import torch
from fake_nvml import FakeNvml
from rich.console import Console

from stoker.cli.screen import PlainLines, outcome_json
from stoker.cli.train import parse_train
from stoker.config import resolve
from stoker.monitor.records import GpuSample
from stoker.monitor.sampler import Gpu, Sampler, Series
from stoker.train.start import Audience, train
from stoker.train.watch import Watch, watch_over


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def series() -> Series[GpuSample]:
    return Series()


@pytest.fixture
def watch(clock: Clock, series: Series[GpuSample]) -> Watch:
    """Of a sampler that samples what a test adds to its series."""
    sampler = Sampler()
    sampler.gpus = (Gpu(0, "Fake", None, series),)
    return Watch(sampler, clock=clock)


def test_metrics_are_means_since_the_last_time(
    watch: Watch, clock: Clock, series: Series[GpuSample]
) -> None:
    for at, busy in ((1.0, 0.2), (2.0, 0.4), (3.0, 0.9)):
        series.add(GpuSample(at, busy=busy))
    clock.now = 2.5
    assert watch.metrics() == {"gpu/busy": pytest.approx(0.3)}
    clock.now = 3.5
    assert watch.metrics() == {"gpu/busy": 0.9}
    clock.now = 3.6
    assert watch.metrics() == {"gpu/busy": 0.9}  # the newest there is
    clock.now = 9.0
    assert watch.metrics() == {}  # which has become old


def test_what_is_unknown_is_left_out_and_words_become_a_number(
    watch: Watch, clock: Clock, series: Series[GpuSample]
) -> None:
    clock.now = 1.0
    series.add(GpuSample(0.5))
    assert watch.metrics() == {}
    clock.now = 2.0
    series.add(GpuSample(1.5, power_w=300.0, memory_total_gib=80.0, throttle=("power cap",)))
    assert watch.metrics() == {"gpu/power_w": 300.0, "gpu/throttled": 1.0}
    clock.now = 3.0
    series.add(GpuSample(2.5, throttle=()))
    assert watch.metrics() == {"gpu/throttled": 0.0}


def test_the_whole_run_weighs_by_time_what_was_known(
    watch: Watch, clock: Clock, series: Series[GpuSample]
) -> None:
    assert watch.overall() == {}
    for at, busy in ((1.0, 1.0), (2.0, None), (5.0, 0.5)):  # intervals of 1, 1 and 3 s
        series.add(GpuSample(at, busy=busy))
        clock.now = at
        watch.metrics()
    assert watch.overall() == {"busy": pytest.approx((1.0 + 3 * 0.5) / 4)}


def settings(**more: Any) -> dict[str, Any]:
    return {"env": "CartPole-v1", "device": "cpu", "timesteps": 512, "eval_episodes": 0, **more}


def test_a_gpu_is_sampled_only_by_a_run_on_one_and_only_if_wanted(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = types.SimpleNamespace(uuid="whole-0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for device in (cpu, gpu):
        assert watch_over(resolve(settings(monitor=False)), device) is None
    without = watch_over(resolve(settings()), cpu)
    assert without is not None
    without.begin_anew()
    without.close()
    watch = watch_over(resolve(settings()), gpu)
    assert watch is not None
    assert nvml.asked == []  # until the run begins
    watch.begin_anew()
    wait_for_busy(watch)
    watch.close()
    assert nvml.open == 0


def wait_for_busy(watch: Watch) -> None:
    deadline = time.monotonic() + 20
    while "gpu/busy" not in watch.metrics():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_can_be_turned_off_with_a_flag_and_in_a_file(tmp_path: Path) -> None:
    assert parse_train(["--device", "cpu"])[0].run.monitor is True
    assert parse_train(["--device", "cpu", "--no-monitor"])[0].run.monitor is False
    (tmp_path / "quiet.yaml").write_text("monitor: false\n")
    words = ["--device", "cpu", "--config", str(tmp_path / "quiet.yaml")]
    assert parse_train(words)[0].run.monitor is False


class Losing(Audience):
    """Waits for the first sample when the run begins, and takes NVML away after two logs."""

    def __init__(self, nvml: FakeNvml, watch: Watch) -> None:
        self._nvml, self._watch = nvml, watch

    def progresses(self, progress: Any) -> None:
        if progress.iteration == 1:
            wait_for_busy(self._watch)
        if progress.iteration == 2:
            self._nvml.fails["*"] = fake_nvml.GPU_IS_LOST
            time.sleep(0.3)


def test_a_run_logs_what_its_gpu_does_until_that_is_unknown(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(Sampler(uuid="whole-0"))
    monkeypatch.setattr("stoker.train.build.watch_over", lambda config, device: watch)
    given = settings(timesteps=1024, n_steps=256, n_envs=1, batch_size=64, runs_dir=str(tmp_path))
    config = resolve({**given, "run_name": "watched"})
    with pytest.warns(UserWarning, match="no longer answers") as told:
        outcome = train(config, audience=Losing(nvml, watch))
    assert sum("no longer answers" in str(one.message) for one in told) == 1
    lines = (tmp_path / "watched" / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    assert len(logged) == 4
    assert logged[1]["gpu/busy"] == pytest.approx(0.6)
    assert logged[1]["gpu/power_w"] == pytest.approx(300.0)
    assert not [name for name in logged[3] if name.startswith("gpu/")]
    status = json.loads((tmp_path / "watched" / "status.json").read_text())
    assert not [name for name in status if name.startswith("gpu/")]
    assert outcome.gpu["busy"] == pytest.approx(0.6)
    assert json.loads(outcome_json(outcome))["gpu"]["busy"] == pytest.approx(0.6)
    assert "GPU 60% busy" in summary(outcome)
    assert "steps/s" in summary(outcome)


def summary(outcome: Any) -> str:
    written = io.StringIO()
    PlainLines(Console(file=written, width=200)).ends(outcome)
    return written.getvalue()


def test_a_run_without_a_gpu_says_nothing_of_one(tmp_path: Path) -> None:
    outcome = train(resolve(settings(runs_dir=str(tmp_path))))
    assert outcome.gpu == {}
    assert not [name for name in outcome.metrics if name.startswith("gpu/")]
    assert json.loads(outcome_json(outcome))["gpu"] is None
    assert "GPU" not in summary(outcome)
    active = outcome._replace(gpu={"busy": 0.97, "sm_active": 0.03})
    assert "GPU 97% busy, 3% of its SMs active" in summary(active)
