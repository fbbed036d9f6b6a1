"""What NVML says and what is made of it, also where it says nothing."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from typing import Any

import fake_nvml
import pytest
from fake_nvml import GIB, FakeNvml

from stoker.monitor.gpu import GpuReader, split_memory, throttle_words
from stoker.monitor.nvml import open_chips
from stoker.monitor.records import GpuSample

PID = 4321
WHOLE = GpuSample(
    at=10.0,
    busy=0.6,
    sm_active=0.02,
    sm_occupancy=0.03,
    tensor=0.05,
    dram=0.1,
    memory_used_gib=20.0,
    memory_total_gib=80.0,
    own_memory_gib=6.0,
    others_memory_gib=3.0,
    power_w=300.0,
    sm_clock_mhz=1980,
    memory_clock_mhz=2600,
    temperature_c=45,
    throttle=("power cap",),
)
"""What the fake chip says once its counters have moved by one."""


@pytest.fixture
def chip(nvml: FakeNvml) -> FakeNvml:
    nvml.processes = [(PID, 6 * GIB), (77, 1 * GIB), (78, 2 * GIB)]
    nvml.reasons = 0x4 | 0x1
    return nvml


def reader_of(uuid: str | None = None) -> GpuReader:
    (found,) = open_chips(uuid).chips
    return GpuReader(found, lambda: PID, cpu_clock=lambda: 0.0)


def sampled(reader: GpuReader, nvml: FakeNvml) -> GpuSample:
    """A first sample, and then one with everything read again, at second 10."""
    reader.sample(0.0)
    nvml.counter += 1.0
    return reader.sample(10.0)


def test_every_figure_is_read_in_its_unit(chip: FakeNvml) -> None:
    assert sampled(reader_of(), chip) == WHOLE


FIGURES = {
    "nvmlDeviceGetUtilizationRates": ["busy"],
    "nvmlDeviceGetMemoryInfo": ["memory_used_gib", "memory_total_gib"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetComputeRunningProcesses": ["own_memory_gib", "others_memory_gib"],
    "nvmlGpmQueryDeviceSupport": ["sm_active", "sm_occupancy", "tensor", "dram"],
    "nvmlGpmSampleAlloc": ["sm_active", "sm_occupancy", "tensor", "dram"],
    "nvmlGpmSampleGet": ["sm_active", "sm_occupancy", "tensor", "dram"],
    "nvmlGpmMetricsGet": ["sm_active", "sm_occupancy", "tensor", "dram"],
}


@pytest.mark.parametrize(
    "code",
    [
        fake_nvml.NOT_SUPPORTED,
        fake_nvml.NO_PERMISSION,
        fake_nvml.FUNCTION_NOT_FOUND,
        fake_nvml.INVALID_ARGUMENT,
        fake_nvml.TIMEOUT,
        fake_nvml.NO_DATA,
        fake_nvml.NOT_READY,
        fake_nvml.UNKNOWN,
    ],
)
@pytest.mark.parametrize("question", FIGURES)
def test_what_cannot_be_read_is_unknown_and_all_else_is_known(
    question: str, code: int, chip: FakeNvml
) -> None:
    chip.fails[question] = code
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sampled(reader_of(), chip)
    assert found == WHOLE._replace(**dict.fromkeys(FIGURES[question]))


def test_a_binding_without_a_function_is_no_error(
    chip: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetPowerUsage")
    assert sampled(reader_of(), chip) == WHOLE._replace(power_w=None)


def test_older_drivers_have_another_name_for_the_reasons(chip: FakeNvml) -> None:
    chip.fails["nvmlDeviceGetCurrentClocksEventReasons"] = fake_nvml.FUNCTION_NOT_FOUND
    assert sampled(reader_of(), chip).throttle == ("power cap", "hardware slowdown")
    chip.fails["nvmlDeviceGetCurrentClocksThrottleReasons"] = fake_nvml.NOT_SUPPORTED
    assert sampled(reader_of(), chip).throttle is None


def test_a_figure_that_comes_back_is_known_again(chip: FakeNvml) -> None:
    reader = reader_of()
    chip.fails["nvmlDeviceGetUtilizationRates"] = fake_nvml.TIMEOUT
    assert reader.sample(0.0).busy is None
    chip.fails.clear()
    assert reader.sample(1.0).busy == 0.6


@pytest.mark.parametrize(
    "code",
    [
        fake_nvml.GPU_IS_LOST,
        fake_nvml.UNINITIALIZED,
        fake_nvml.DRIVER_NOT_LOADED,
        fake_nvml.LIBRARY_NOT_FOUND,
        fake_nvml.RESET_REQUIRED,
        fake_nvml.MISMATCH,
    ],
)
def test_a_chip_that_is_lost_is_unknown_at_once_with_one_warning(code: int, chip: FakeNvml) -> None:
    reader = reader_of()
    assert sampled(reader, chip) == WHOLE
    chip.fails["*"] = code
    with pytest.warns(UserWarning, match=f"Fake whole-0 no longer answers .NVML said {code}"):
        assert reader.sample(10.1) == GpuSample(10.1)  # nothing is carried over
    asked = len(chip.asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.sample(20.0) == GpuSample(20.0)
        reader.close()
    assert len(chip.asked) == asked


def test_a_chip_that_says_nothing_any_more_is_warned_about_once(chip: FakeNvml) -> None:
    reader = reader_of()
    sampled(reader, chip)
    chip.fails["*"] = fake_nvml.UNKNOWN
    with pytest.warns(UserWarning, match="no longer answers") as told:
        samples = [reader.sample(float(second)) for second in range(20, 40, 6)]
    assert samples == [GpuSample(second) for second in range(20, 40, 6)]
    assert len(told) == 1


def test_a_chip_that_never_said_anything_is_no_surprise(chip: FakeNvml) -> None:
    (found,) = open_chips().chips
    chip.fails["*"] = fake_nvml.NO_PERMISSION
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GpuReader(found).sample(0.0) == GpuSample(0.0)


def test_counters_are_those_since_the_last_look(chip: FakeNvml) -> None:
    reader = reader_of()
    assert reader.sample(0.0).sm_active is None  # with what should it be compared?
    chip.counter = 10.0
    assert reader.sample(1.0).sm_active == pytest.approx(0.2)
    chip.counter = 15.0
    assert reader.sample(2.0).sm_active == pytest.approx(0.1)
    chip.counter = float("nan")
    assert reader.sample(3.0).sm_active is None


def test_no_two_threads_look_at_the_counters_at_once(
    chip: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver crashes of it: a run has a sampler, and so has whoever watches that run."""
    inside, together = [0], list[int]()
    looks = type(chip).nvmlGpmSampleGet

    def look(self: FakeNvml, handle: str, sample: Any) -> Any:
        inside[0] += 1
        time.sleep(0.002)
        together.append(inside[0])
        inside[0] -= 1
        return looks(self, handle, sample)

    monkeypatch.setattr(type(chip), "nvmlGpmSampleGet", look)
    readers = [reader_of() for _ in range(3)]
    threads = [
        threading.Thread(target=lambda one=one: [one.sample(float(i)) for i in range(10)])
        for one in readers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 30


def test_a_chip_without_counters_is_not_asked_for_them(chip: FakeNvml) -> None:
    chip.counts_gpm = False
    assert sampled(reader_of(), chip).sm_active is None
    assert "nvmlGpmSampleGet" not in chip.asked


def test_what_was_allocated_is_given_back(chip: FakeNvml) -> None:
    found = open_chips()
    reader = GpuReader(found.chips[0])
    sampled(reader, chip)
    assert len(chip.held) == 2
    reader.close()
    found.close()
    assert (len(chip.held), chip.open) == (0, 0)


def test_no_rights_to_see_processes_is_unknown_and_not_zero() -> None:
    assert split_memory([], PID) == (None, None)
    assert split_memory([], None) == (None, None)


def test_in_a_container_the_drivers_numbers_are_not_ours(chip: FakeNvml) -> None:
    chip.processes = [(99, 9 * GIB)]
    found = sampled(reader_of(), chip)
    assert (found.own_memory_gib, found.others_memory_gib) == (None, None)


def test_a_process_whose_memory_is_not_told_makes_the_sum_unknown(chip: FakeNvml) -> None:
    chip.processes = [(PID, 6 * GIB), (5, None)]
    found = sampled(reader_of(), chip)
    assert (found.own_memory_gib, found.others_memory_gib) == (6.0, None)


def test_reasons_are_words_and_idleness_is_none() -> None:
    assert throttle_words(0x1) == ()
    assert throttle_words(0x1 | 0x4 | 0x40) == ("power cap", "heat, by the hardware")
    assert throttle_words(0x1000) == ("reason 0x1000",)


def test_parts_of_a_divided_gpu_are_chips_of_their_own(chip: FakeNvml) -> None:
    chip.gpus = ["whole-0", "whole-1"]
    chip.parts = {"whole-1": ["part-a", None, "part-b"]}
    found = open_chips().chips
    assert [(one.index, one.name) for one in found] == [
        (0, "Fake whole-0"),
        (1, "Fake whole-1"),
        (1, "Fake part-a"),
        (1, "Fake part-b"),
    ]
    part = sampled(GpuReader(found[2], lambda: PID, cpu_clock=lambda: 0.0), chip)
    unknown = dict.fromkeys(["busy", "power_w", "temperature_c"])
    eighth = {"memory_used_gib": 2.5, "memory_total_gib": 10.0}
    assert part == WHOLE._replace(**unknown, **eighth)


@pytest.mark.parametrize("uuid", ["part-a", "MIG-part-a", "GPU-part-a"])
def test_a_part_is_found_by_the_uuid_that_cuda_gives_it(uuid: str, chip: FakeNvml) -> None:
    chip.parts = {"whole-0": ["part-a"]}
    reader = reader_of(uuid)
    assert reader.chip.uuid == "MIG-part-a"
    assert sampled(reader, chip).sm_active == 0.02


def test_one_gpu_we_may_not_see_hides_no_other(chip: FakeNvml) -> None:
    chip.gpus = ["whole-0", "whole-1"]
    seen = FakeNvml.nvmlDeviceGetHandleByIndex

    def refuse(self: FakeNvml, index: int) -> str:
        if index == 0:
            raise fake_nvml.NVMLError(fake_nvml.NO_PERMISSION)
        return seen(self, index)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeNvml, "nvmlDeviceGetHandleByIndex", refuse)
        assert [one.name for one in open_chips().chips] == ["Fake whole-1"]


def test_why_there_is_no_gpu_is_told(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.gpus = []
    assert open_chips().trouble == "NVML knows no GPU"
    assert open_chips("gone").trouble == "NVML knows no GPU with the UUID gone"
    nvml.fails["nvmlInit"] = fake_nvml.DRIVER_NOT_LOADED
    assert open_chips().trouble == "NVML cannot be used: NVML said 9"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in (open_chips().trouble or "")


def test_the_fake_has_only_what_the_real_one_has() -> None:
    real = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    names = [name for name in vars(FakeNvml) if name.lower().startswith(("nvml", "c_nvml"))]
    assert len(names) > 25
    for name in names:
        assert hasattr(real, name), name
    for name in names:
        if name.startswith(("NVML_CLOCK", "NVML_GPM", "NVML_TEMPERATURE")):
            assert getattr(real, name) == getattr(FakeNvml, name), name
    lost = {"GPU_IS_LOST", "RESET_REQUIRED", "DRIVER_NOT_LOADED", "NOT_SUPPORTED"}
    for name in lost:
        assert getattr(real, f"NVML_ERROR_{name}") == getattr(fake_nvml, name)


def test_only_one_file_imports_the_binding() -> None:
    from test_layers import MODULES

    importing = [module for module, path in MODULES.items() if "import pynvml" in path.read_text()]
    assert importing == ["stoker.monitor.nvml"]
