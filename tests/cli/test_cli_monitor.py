"""`stoker monitor`: the machine in a terminal, in lines, and beside a run."""

from __future__ import annotations

import csv
import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_nvml
import pytest
from fake_nvml import GIB, FakeNvml
from rich.console import Console

from stoker.cli.figures import bar, figure, sparkline
from stoker.cli.main import main
from stoker.cli.monitor import CsvLines, _pid_of
from stoker.cli.monitor_view import draw, plain_lines
from stoker.cli.snapshot import GpuNow, Snapshot, as_row
from stoker.config import resolve
from stoker.monitor.records import GpuSample, HostSample
from stoker.runs.folder import RunFolder
from stoker.runs.reader import summarise
from stoker.runs.strict_json import loads

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, and with the handler that SIGTERM had before."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def run() -> RunFolder:
    """A run of 1,234 steps that says it is running, here."""
    folder = RunFolder.create(Path("runs"), "mine")
    folder.write_config(resolve({}).flat())
    status = {"state": "running", "env_steps": 1234, "sps": 987.6, "pid": os.getpid()}
    folder.write_status({**status, "host": socket.gethostname(), "rollout/ep_rew_mean": 42.0})
    return folder


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["monitor", *words])
    out, error = capsys.readouterr()
    return int(left.value.code or 0), out, error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--every 0", ["every is 0", "0.1 seconds or more"]),
        ("--every nan", ["every is nan"]),
        ("--json --csv", ["either"]),
        ("nothing", ["no run at", "nothing"]),
        ("--evry 1", ["--evry"]),
    ],
)
def test_a_mistake_is_explained_with_exit_code_2(
    words: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = called(capsys, *words.split())
    assert code == 2
    for part in says:
        assert part in out + error
    assert "Traceback" not in out + error


def test_json_is_strict_with_null_for_what_is_unknown(
    nvml: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.gpus = ["whole-0", "whole-1"]
    nvml.fails["nvmlDeviceGetTemperature"] = fake_nvml.NO_PERMISSION
    nvml.reasons = 0x4
    code, out, _ = called(capsys, "--once", "--json")
    assert code == 0
    assert out.count("\n") == 1
    shot = loads(out)
    assert [gpu["name"] for gpu in shot["gpus"]] == ["Fake whole-0", "Fake whole-1"]
    for gpu in shot["gpus"]:
        assert gpu["busy"] == pytest.approx(0.6)
        assert gpu["memory_used_gib"] == 20.0
        assert gpu["throttle"] == ["power cap"]
        assert gpu["temperature_c"] is None
        assert gpu["own_memory_gib"] is None
    assert len(shot["host"]["cores"]) == os.cpu_count()
    assert shot["host"]["memory_total_gib"] > 0.1
    assert shot["host"]["process_cores"] is None
    assert (shot["run"], shot["why_no_gpu"]) == (None, None)
    assert abs(shot["time"] - time.time()) < 60


def test_a_machine_without_a_gpu_says_unknown_and_why(
    nvml: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.fails["nvmlInit"] = fake_nvml.DRIVER_NOT_LOADED
    code, out, error = called(capsys, "--once")
    assert (code, error) == (0, "")
    gpu, host = out.splitlines()
    assert gpu == "GPU: unknown (NVML cannot be used: NVML said 9)"
    assert host.startswith("host: CPU ")


def test_a_run_stands_beside_the_machine(
    nvml: FakeNvml, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.processes = [(os.getpid(), 6 * GIB), (1, 1 * GIB)]
    shot = loads(called(capsys, "mine", "--once", "--json")[1])
    assert (shot["run"]["env_steps"], shot["run"]["sps"]) == (1234, 987.6)
    assert shot["gpus"][0]["own_memory_gib"] == 6.0
    assert shot["gpus"][0]["others_memory_gib"] == 1.0
    lines = called(capsys, "mine", "--once")[1].splitlines()
    assert "1,234 steps, 988 steps/s, reward 42.0, evaluated unknown" in lines[-1]


def test_only_a_process_of_this_machine_is_watched(run: RunFolder) -> None:
    assert _pid_of(run.path) == os.getpid()
    status = run.read_status()
    run.write_status({**status, "host": "elsewhere"})
    assert _pid_of(run.path) is None
    run.write_status({**status, "state": "finished"})
    assert _pid_of(run.path) is None
    (run.path / "status.json").write_text("{")
    assert _pid_of(run.path) is None
    assert _pid_of(None) is None


def snapshot(busy: float | None = 0.6, cores: tuple[float, ...] | None = (1.0, 0.25)) -> Snapshot:
    gpu = GpuSample(
        at=1.0,
        busy=busy,
        sm_active=0.03,
        memory_used_gib=20.0,
        memory_total_gib=80.0,
        own_memory_gib=6.0,
        others_memory_gib=3.0,
        power_w=301.4,
        throttle=("power cap", "heat, by the driver"),
    )
    host = HostSample(
        1.0, cpu=0.625, cores=cores, process_cores=1.5, workers_cores=7.25, memory_used_gib=2.0
    )
    return Snapshot(1700000000.0, (GpuNow(0, "H200", None, gpu),), None, host, None)


def test_csv_has_a_column_for_each_figure_and_empty_cells_for_the_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = CsvLines()
    lines.show(snapshot())
    lines.show(snapshot(busy=None))
    known, unknown = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (known["gpu0_busy"], unknown["gpu0_busy"]) == ("0.6", "")
    assert known["gpu0_temperature_c"] == ""
    assert known["gpu0_throttle"] == "power cap; heat, by the driver"
    assert (known["host_core0"], known["host_core1"]) == ("1.0", "0.25")
    assert known["time"] == "1700000000.0"


def test_the_columns_of_cores_are_there_before_their_first_figures() -> None:
    row = as_row(snapshot(cores=None))
    assert [row[f"host_core{core}"] for core in range(os.cpu_count() or 0)] == [""] * (
        os.cpu_count() or 0
    )


def test_plain_lines_say_what_is_known_and_what_is_not() -> None:
    gpu, host = plain_lines(snapshot(busy=None))
    assert gpu.startswith("GPU 0, H200: busy unknown, SM active 3%, 20.0 of 80.0 GiB, power 301 W")
    assert "held back by: power cap, heat, by the driver" in gpu
    assert "unknown °C" not in gpu
    assert "CPU 62% of 2 cores, memory unknown" in host  # of what is not known
    assert "the run takes 1.50 cores, its workers 7.25" in host


def drawn(*shots: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(draw(shots))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_screen_has_bars_for_now_and_lines_over_time(run: RunFolder) -> None:
    past = [snapshot(busy=share) for share in (0.0, None, 0.5, 1.0)]
    screen = drawn(*past, snapshot()._replace(run=summarise(run.path)))
    lines = screen.splitlines()
    busy = next(line for line in lines if " busy " in line)
    assert "█" * 14 + "░" * 10 in busy
    assert "60%" in busy
    assert "▁ ▄█▅" in busy
    tensor = next(line for line in lines if " tensor " in line)
    assert "unknown" in tensor
    assert "█" not in tensor
    assert "the run 6.0, others 3.0" in screen
    cores = next(line for line in lines if " 100%" in line)
    assert "25%" in cores
    assert "█████" in cores
    assert "988 steps/s" in screen


def test_many_cores_share_rows() -> None:
    screen = drawn(snapshot(cores=tuple(core / 100 for core in range(64))))
    assert "63%" in screen
    assert screen.count("\n") < 30


def test_figures_as_text() -> None:
    assert sparkline([0.0, 0.5, 1.0, None], 40, (0.0, 1.0)) == "▁▄█ "
    assert sparkline([5.0, 7.0]) == "▁█"  # between their own limits
    assert sparkline([3.0] * 100, 10) == "▁" * 10
    assert sparkline([]) == ""
    assert bar(0.5, 4) == "██░░"
    assert bar(1.7, 4) == "████"
    assert bar(None, 4) == ""
    assert figure(None, ".1f", " W") == "unknown"
    assert figure(0.0, ".1f", " W") == "0.0 W"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_lines_go_on_until_a_signal_comes(
    start_stoker: Start, number: signal.Signals, code: int
) -> None:
    process = start_stoker("monitor", "--json", "--every", "0.1")
    try:
        assert process.stdout is not None
        shots = [loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code
    assert error == ""
    times = [shot["time"] for shot in shots]
    assert times == sorted(set(times))


def read_until(terminal: int, what: bytes) -> bytes:
    """What a terminal shows, up to and with `what`."""
    shown, deadline = b"", time.monotonic() + 60
    while what not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other end has gone
                break
    return shown


def test_on_a_terminal_ctrl_c_gives_the_cursor_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "monitor", "--every", "0.2"],
        cwd=tmp_path,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        shown = read_until(ours, b"/dev/shm")
        assert b"\x1b[?25l" in shown  # hidden while it draws
        process.send_signal(signal.SIGINT)
        assert b"\x1b[?25h" in read_until(ours, b"\x1b[?25h")
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"Traceback" not in shown


def test_watching_a_machine_does_without_torch() -> None:
    program = (
        "import sys; from stoker.cli.main import main\n"
        "try:\n    main(['monitor', '--once', '--json', '--every', '0.1'])\n"
        "except SystemExit as left:\n    sys.exit(left.code or ('torch' in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    assert ended.returncode == 0
