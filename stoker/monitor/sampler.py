"""The sampler: a thread of its own that reads GPUs and host, off the training thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stoker.monitor.gpu import GpuReader
from stoker.monitor.host import HostReader
from stoker.monitor.nvml import Found, open_chips, tell
from stoker.monitor.records import GpuSample, HostSample, Series
from stoker.monitor.tape import Tape

_MOST_SHARE = 0.0045
"""Of a core, for everything; where a machine is so slow that 20 readings a second cost more, there
are fewer."""
_CREDIT_S = 2.0  # in which the first readings may be dearer
_LONGEST_WAIT_S = 0.1
_LEAVES_WITHIN_S = 2.0


def rest_for(spent_s: float, elapsed_s: float) -> float:
    """Seconds to do nothing, for the processor time spent to stay below its share."""
    return max(0.0, spent_s / _MOST_SHARE - elapsed_s - _CREDIT_S)


class Gpu(NamedTuple):
    """A GPU that is sampled, or a part of one."""

    number: int
    """In NVML's order, which is not always CUDA's; a part has that of its GPU."""
    name: str
    uuid: str | None
    series: Series[GpuSample]


class Sampler:
    """Samples from `start` to `close`; each figure as often as it is worth, all for little.

    `uuid` names the one GPU to watch, which is known to be there: if it cannot be read, one
    warning says why. Without it, all GPUs are watched, if there are any; or none, as `gpus` says.
    `host` is the folder whose disk is watched with the rest of the host; without it the host is
    not, or its cores and memory alone, as `cores` says.
    """

    def __init__(
        self,
        uuid: str | None = None,
        gpus: bool = True,
        host: Path | None = None,
        cores: bool = False,
        pid: int | None = None,
        host_every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid = pid
        """The process whose part of it all is told apart, with its workers."""
        self.gpus: tuple[Gpu, ...] = ()
        self.trouble: str | None = None
        """Why no GPU is known, once that was looked for."""
        self.host: Series[HostSample] = Series()
        self.tape: Tape | None = None
        """What reads the threads of a run beside it all, while there is one."""
        self._uuid, self._wants_gpus, self._clock = uuid, gpus, clock
        watched = host is not None or cores
        self._host = HostReader(host, self._watched, host_every_s) if watched else None
        self._readers: list[tuple[GpuReader, Series[GpuSample]]] = []
        self._found: Found | None = None
        self._over, self._opened = False, threading.Event()
        self._asleep = threading.Lock()  # held until the end, so that whoever waits for it sleeps
        self._asleep.acquire()
        self._thread: threading.Thread | None = None
        self._spent_s, self._started = 0.0, clock()

    def _watched(self) -> int | None:
        return self.pid

    def start(self) -> None:
        """Begin, in a thread. Once."""
        self._thread = threading.Thread(target=self._sample, name="stoker-monitor", daemon=True)
        self._thread.start()

    def wait_until_open(self, timeout_s: float) -> bool:
        """Whether GPUs were looked for within that time."""
        return self._opened.wait(timeout_s)

    @property
    def cost(self) -> float:
        """Share of a core that sampling has taken so far, without looking for GPUs at first."""
        return self._spent_s / max(self._clock() - self._started, 1e-9)

    def open(self) -> None:
        """Look for GPUs."""
        if not self._wants_gpus:
            self._opened.set()
            return
        self._found = open_chips(self._uuid)
        self.trouble = self._found.trouble
        for chip in self._found.chips:
            gpu = Gpu(chip.index, chip.name, chip.uuid, Series())
            self._readers.append((GpuReader(chip, self._watched), gpu.series))
            self.gpus = (*self.gpus, gpu)
        self._opened.set()
        if self._uuid is not None and self.trouble is not None:
            tell(f"What the GPU does is unknown: {self.trouble}. Training is not affected.")

    def tick(self) -> float:
        """Read what is due; the seconds until something is again."""
        now = self._clock()
        soonest = now + _LONGEST_WAIT_S
        for reader, series in self._readers:
            if reader.due <= now:
                series.add(reader.sample(now))
            soonest = min(soonest, reader.due)
        if self._host is not None:
            if self._host.due <= now:
                self.host.add(self._host.sample(now))
            soonest = min(soonest, self._host.due)
        tape = self.tape
        if tape is not None and tape.due <= now:  # which nobody is woken for: that is dear
            tape.read(now, self.gpus[0].series.latest if self.gpus else None, self.host.latest)
        return max(soonest - self._clock(), 0.0)

    def _sample(self) -> None:
        self.open()
        self._started, before = self._clock(), time.thread_time()
        while not self._over:
            wait = self.tick()
            self._spent_s = time.thread_time() - before
            self._sleep(max(wait, rest_for(self._spent_s, self._clock() - self._started)))
        self._release()

    def _sleep(self, seconds: float) -> None:
        """Until then or the end; what waking up costs meanwhile does not make it longer."""
        until = self._clock() + seconds
        while not self._over and (left := until - self._clock()) > 0:
            self._asleep.acquire(timeout=min(left, _LONGEST_WAIT_S))

    def _release(self) -> None:
        for reader, _ in self._readers:
            reader.close()
        if self._found is not None:
            self._found.close()

    def close(self) -> None:
        """End sampling; what was sampled can still be read."""
        if not self._over:
            self._over = True
            self._asleep.release()
        if self._thread is not None:
            self._thread.join(_LEAVES_WITHIN_S)  # a driver that hangs holds nobody up

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
