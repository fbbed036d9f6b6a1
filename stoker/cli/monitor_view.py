"""What `stoker monitor` looks like: panels with bars over time, or plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stoker.cli.figures import bar, duration, figure, of_total, sparkline
from stoker.cli.snapshot import GpuNow, Snapshot
from stoker.monitor.records import GpuSample, HostSample
from stoker.runs.reader import RunSummary

_REMEMBERED = 240
_BAR, _LINE, _CORE_LINE = 24, 40, 8
_CORES_A_ROW = 6
_WHOLE = (0.0, 1.0)


class PlainLines:
    """A line for each GPU, for the host and for the run, each time; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, shot: Snapshot) -> None:
        for line in plain_lines(shot):
            self._console.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Nothing is left open."""


class OneScreen:
    """The panels, once."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, shot: Snapshot) -> None:
        self._console.print(draw([shot]))

    def close(self) -> None:
        """Nothing is left open."""


class LiveScreen:
    """The panels, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._shots: deque[Snapshot] = deque(maxlen=_REMEMBERED)
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, shot: Snapshot) -> None:
        self._shots.append(shot)
        self._live.update(draw(list(self._shots)), refresh=True)

    def close(self) -> None:
        self._live.stop()


def plain_lines(shot: Snapshot) -> list[str]:
    """A snapshot in words."""
    lines = [f"{_title(gpu)}: {_gpu_words(gpu.sample)}" for gpu in shot.gpus]
    if not shot.gpus:
        lines.append(_no_gpu(shot))
    lines.append(f"host: {_host_words(shot.host)}")
    if shot.run is not None:
        lines.append(f"run {shot.run.name}: {_run_words(shot.run)}")
    return lines


def draw(shots: Sequence[Snapshot]) -> RenderableType:
    """The last snapshot, with those before it as lines over time."""
    now = shots[-1]
    panels: list[RenderableType] = [
        _panel(_title(gpu), _gpu_table(gpu.sample, _history(shots, place)))
        for place, gpu in enumerate(now.gpus)
    ]
    if not now.gpus:
        panels.append(Text(_no_gpu(now)))
    panels.append(_panel("host", _host_table(now.host, [shot.host for shot in shots])))
    if now.run is not None:
        panels.append(_panel(f"run {now.run.name}", Text(_run_words(now.run))))
    return Group(*panels)


def _history(shots: Sequence[Snapshot], place: int) -> list[GpuSample]:
    return [shot.gpus[place].sample for shot in shots if place < len(shot.gpus)]


def _panel(title: str, inside: RenderableType) -> Panel:
    return Panel(inside, title=Text(title, "bold"), title_align="left", expand=False)


def _title(gpu: GpuNow) -> str:
    return f"GPU {gpu.number}, {gpu.name}"


def _no_gpu(shot: Snapshot) -> str:
    why = shot.why_no_gpu or "still looking"
    return f"GPU: unknown ({why})"


def _gpu_table(now: GpuSample, past: Sequence[GpuSample]) -> Table:
    def over_time(read: Callable[[GpuSample], float | None]) -> str:
        return sparkline([read(sample) for sample in past], _LINE, _WHOLE)

    table = Table.grid(padding=(0, 2))
    for label, read, colour in _SHARES:
        share = read(now)
        table.add_row(label, Text(bar(share, _BAR), colour), figure(share, ".0%"), over_time(read))
    table.add_row(
        "memory",
        Text(bar(_part(now.memory_used_gib, now.memory_total_gib), _BAR), "blue"),
        of_total(now.memory_used_gib, now.memory_total_gib),
        _owners(now),
    )
    return _with_note(table, _state_words(now))


_SHARES: tuple[tuple[str, Callable[[GpuSample], float | None], str], ...] = (
    ("busy", lambda sample: sample.busy, "green"),
    ("SM active", lambda sample: sample.sm_active, "magenta"),
    ("occupancy", lambda sample: sample.sm_occupancy, "magenta"),
    ("tensor", lambda sample: sample.tensor, "cyan"),
    ("DRAM", lambda sample: sample.dram, "yellow"),
)


def _with_note(table: Table, words: str) -> Table:
    whole = Table.grid()
    whole.add_row(table)
    whole.add_row(Text(words))
    return whole


def _host_table(now: HostSample, past: Sequence[HostSample]) -> Table:
    table = Table.grid(padding=(0, 2))
    over_time = sparkline([sample.cpu for sample in past], _LINE, _WHOLE)
    table.add_row("CPU", Text(bar(now.cpu, _BAR), "green"), figure(now.cpu, ".0%"), over_time)
    for label, used, total in (
        ("memory", now.memory_used_gib, now.memory_total_gib),
        ("disk", now.disk_used_gib, now.disk_total_gib),
        ("/dev/shm", now.shm_used_gib, now.shm_total_gib),
    ):
        share = Text(bar(_part(used, total), _BAR), "blue")
        table.add_row(label, share, of_total(used, total), "")
    whole = Table.grid()
    whole.add_row(table)
    whole.add_row(_cores_grid(past))
    if now.process_cores is not None:
        whole.add_row(Text(_process_words(now)))
    return whole


def _cores_grid(past: Sequence[HostSample]) -> RenderableType:
    """Each core's number, its last moments and its share, some to a row."""
    cores = past[-1].cores
    if cores is None:
        return Text("cores: unknown")
    grid = Table.grid(padding=(0, 2))
    cells = [
        Text.assemble(
            (f"{core:>3} ", "dim"),
            (sparkline(_core_history(past, core), _CORE_LINE, _WHOLE).rjust(_CORE_LINE), "green"),
            f" {share:>4.0%}",
        )
        for core, share in enumerate(cores)
    ]
    for start in range(0, len(cells), _CORES_A_ROW):
        grid.add_row(*cells[start : start + _CORES_A_ROW])
    return grid


def _core_history(past: Sequence[HostSample], core: int) -> list[float | None]:
    rows = [sample.cores for sample in past[-_CORE_LINE:]]
    return [row[core] if row is not None and core < len(row) else None for row in rows]


def _part(used: float | None, total: float | None) -> float | None:
    return used / total if used is not None and total else None


def _owners(now: GpuSample) -> str:
    others = figure(now.others_memory_gib, ".1f")
    if now.own_memory_gib is not None:
        return f"the run {now.own_memory_gib:.1f}, others {others}"
    return "" if now.others_memory_gib is None else f"processes {others}"


def _state_words(now: GpuSample) -> str:
    held = "unknown" if now.throttle is None else ", ".join(now.throttle) or "nothing"
    return (
        f"power {figure(now.power_w, '.0f', ' W')}, SM {figure(now.sm_clock_mhz, '.0f', ' MHz')}, "
        f"memory {figure(now.memory_clock_mhz, '.0f', ' MHz')}, "
        f"{figure(now.temperature_c, '.0f', ' °C')}, held back by: {held}"
    )


def _gpu_words(now: GpuSample) -> str:
    return (
        f"busy {figure(now.busy, '.0%')}, SM active {figure(now.sm_active, '.0%')}, "
        f"{of_total(now.memory_used_gib, now.memory_total_gib)}, {_state_words(now)}"
    )


def _host_words(now: HostSample) -> str:
    count = "" if now.cores is None else f" of {len(now.cores)} cores"
    words = (
        f"CPU {figure(now.cpu, '.0%')}{count}, "
        f"memory {of_total(now.memory_used_gib, now.memory_total_gib)}, "
        f"disk {of_total(now.disk_used_gib, now.disk_total_gib)}, "
        f"/dev/shm {of_total(now.shm_used_gib, now.shm_total_gib)}"
    )
    return words if now.process_cores is None else f"{words}, {_process_words(now)}"


def _process_words(now: HostSample) -> str:
    workers = figure(now.workers_cores, ".2f")
    return f"the run takes {figure(now.process_cores, '.2f')} cores, its workers {workers}"


def _run_words(run: RunSummary) -> str:
    age = "unknown" if run.updated is None else f"{duration(time.time() - run.updated)} ago"
    return (
        f"{run.state}, {figure(run.env_steps, ',.0f')} steps, {figure(run.sps, ',.0f')} steps/s, "
        f"reward {figure(run.reward, '.1f')}, evaluated {figure(run.eval_reward, '.1f')}, "
        f"status {age}"
    )
