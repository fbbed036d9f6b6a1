"""Findings: facts in, sentences out. Each of them alone, and none where all is well."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.monitor.findings import Facts, find

WELL = Facts(
    cores=8,
    workers=8,
    step_cores=1.0,
    cores_busy_before=0.05,
    handles=1024,
    handles_needed=100,
    shm_free_gib=1.0,
    shm_needed_gib=0.001,
    gpu="Fake 9000",
    driver="580.1",
    driver_cuda=(13, 0),
    torch="2.13.0",
    torch_cuda="13.0",
    torch_sees_gpu=True,
    throttle=(),
    others_memory_gib=0.0,
    busy_before=0.0,
    memory_before_gib=0.6,
)
UNSEEN: dict[str, Any] = {"torch_sees_gpu": False}

WRONG: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "threads of workers": (
        {"worker_threads": 4},
        "too many threads",
        ["8 workers with 4 threads each are 32", "8 or fewer", "OMP_NUM_THREADS=1"],
    ),
    "more workers than cores": (
        {"workers": 12},
        "too many threads",
        ["12 workers share 8 cores", "--n-workers 8"],
    ),
    "threads of the learner": (
        {"learner_threads": 16},
        "too many threads",
        ["The learner has 16 threads on 8 cores", "--torch-threads 8"],
    ),
    "threads of the environment": (
        {"step_cores": 3.2},
        "too many threads",
        ["keeps 3.2 cores busy at once", "1 core a step"],
    ),
    "others on the cores": (
        {"cores_busy_before": 0.9},
        "cores in use",
        ["90% of the 8 cores were busy", "25% or less"],
    ),
    "handles": (
        {"handles": 64},
        "too few file handles",
        ["may have 64 files open", "100 or more", "ulimit -n 100"],
    ),
    "shared memory": (
        {"shm_needed_gib": 1.5},
        "small /dev/shm",
        ["1,024.0 MiB free", "1,536.0 or more", "--shm-size"],
    ),
    "power": (
        {"throttle": ("power cap",)},
        "GPU held back",
        ["Fake 9000 were held down", "(power cap)", "nvidia-smi -pl"],
    ),
    "heat": (
        {"throttle": ("heat, by the driver", "power cap")},
        "GPU held back",
        ["(heat, by the driver, power cap)", "cooling"],
    ),
    "others on the GPU": (
        {"others_memory_gib": 12.0},
        "GPU shared",
        ["Other processes hold 12.0 GiB of the Fake 9000", "nvidia-smi"],
    ),
    "others on the GPU that cannot be told apart": (
        {"others_memory_gib": None, "busy_before": 0.97, "memory_before_gib": 30.0},
        "GPU shared",
        ["97% busy, 30.0 GiB of its memory in use"],
    ),
    "torch for the CPU": (
        {**UNSEEN, "torch_cuda": None},
        "torch for the CPU",
        ["torch 2.13.0 is built for the CPU alone", "there is a Fake 9000", "build for CUDA"],
    ),
    "an old driver": (
        {**UNSEEN, "driver": "535.2", "driver_cuda": (12, 2)},
        "driver too old",
        ["The driver 535.2 knows CUDA up to 12.2", "built for 13.0", "a driver for CUDA 13"],
    ),
    "a hidden GPU": (UNSEEN, "GPU out of sight", ["sees no GPU", "CUDA_VISIBLE_DEVICES"]),
}


def test_nothing_is_found_where_all_is_well() -> None:
    assert find(WELL) == []


def test_what_is_unknown_is_no_finding() -> None:
    assert find(Facts()) == []


@pytest.mark.parametrize(("change", "what", "told"), WRONG.values(), ids=WRONG)
def test_each_is_found_alone_and_said_in_a_sentence(
    change: dict[str, Any], what: str, told: list[str]
) -> None:
    (finding,) = find(WELL._replace(**change))
    assert finding.what == what
    for words in told:
        assert words in finding.sentence
    assert finding.sentence.endswith(".")


@pytest.mark.parametrize(
    "change",
    [
        {"throttle": ("clocks set by an application",)},  # a wish, not a loss
        {"worker_threads": 4, "workers": 2},
        {"step_cores": 3.2, "workers": 1},
        {**UNSEEN, "gpu": None},
        {**UNSEEN, "torch_cuda": None, "wants_gpu": False},
        {"driver_cuda": (12, 9)},  # an old one that works all the same
    ],
)
def test_what_does_no_harm_is_no_finding(change: dict[str, Any]) -> None:
    assert find(WELL._replace(**change)) == []
