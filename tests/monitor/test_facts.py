"""Facts of this machine: what the driver says, and limits, each as far as it is known."""

from __future__ import annotations

import fake_nvml
import pytest

from stoker.monitor.facts import machine_facts
from stoker.monitor.findings import Facts


def test_a_gpu_is_described_by_its_driver(nvml: fake_nvml.FakeNvml) -> None:
    facts = Facts(**machine_facts())
    assert facts.gpu == "Fake whole-0"
    assert (facts.driver, facts.driver_cuda) == ("580.65", (13, 0))
    assert (facts.busy_before, facts.memory_before_gib) == (0.6, 20.0)
    assert nvml.open == 0
    assert not nvml.held


def test_what_a_driver_does_not_say_is_unknown(nvml: fake_nvml.FakeNvml) -> None:
    for question in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetUtilizationRates"):
        nvml.fails[question] = fake_nvml.NOT_SUPPORTED
    facts = Facts(**machine_facts())
    assert facts.driver_cuda is None
    assert facts.busy_before is None
    assert facts.memory_before_gib == 20.0


def test_without_a_driver_there_is_no_gpu(nvml: fake_nvml.FakeNvml) -> None:
    nvml.fails["nvmlInit"] = fake_nvml.DRIVER_NOT_LOADED
    facts = Facts(**machine_facts())
    assert facts.gpu is None
    assert facts.cores_busy_before is not None


@pytest.mark.parametrize(("written", "threads"), [("16", 16), ("4,2", 4), ("", 1), ("many", 1)])
def test_threads_of_workers_are_what_the_user_set(
    monkeypatch: pytest.MonkeyPatch, nvml: fake_nvml.FakeNvml, written: str, threads: int
) -> None:
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", written)
    assert machine_facts()["worker_threads"] == threads


def test_the_limit_of_files_is_this_process_s(
    monkeypatch: pytest.MonkeyPatch, nvml: fake_nvml.FakeNvml
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (123, 456))
    assert machine_facts()["handles"] == 123
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert machine_facts()["handles"] is None
