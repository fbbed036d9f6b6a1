"""What a run reports while it trains: metrics.jsonl and TensorBoard. Trouble never stops it."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import math
import os
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.runs.folder import METRICS_NAME, RunFolder
from stoker.runs.lines import LineFile
from stoker.runs.reader import parse_line
from stoker.runs.strict_json import dumps

_RETRY_S = 30.0
_CLOSE_S = 10.0
_OWN_NAMES = ("env_steps", "wall_s")


class Recorder:
    """Appends metrics to a run. No method raises for a disk that fails; `trouble` says so.

    `trouble` is what went wrong last, None once writing works again. The first occurrence is
    warned of. `wall_s_before` is the training time of the run's earlier sessions.
    """

    def __init__(self, folder: RunFolder, *, wall_s_before: float = 0.0) -> None:
        self._lines = LineFile(folder.path / METRICS_NAME)
        self._events = _Events(folder.path)
        self._started = time.monotonic() - wall_s_before
        self._warned = False

    @property
    def trouble(self) -> str | None:
        return self._lines.trouble or self._events.trouble

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write `metrics` as of environment step `step`; non-finite values are left out.

        `env_steps` and `wall_s` are the recorder's own names: a metric cannot take them.
        """
        numbers = {name: float(value) for name, value in metrics.items() if name not in _OWN_NAMES}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        wall_s = round(time.monotonic() - self._started, 3)
        self._lines.append(dumps({"env_steps": step, "wall_s": wall_s, **finite}).encode() + b"\n")
        # Where a line finds no room events would not either, and theirs fail with more noise.
        if self._lines.trouble is None:
            self._events.add(step, finite)
        self._warn_once()

    def truncate_after(self, step: int) -> None:
        """Drop what was recorded past environment step `step`, and a torn last line: the run goes
        on from there and will record it anew. TensorBoard is told to forget it too."""
        self._lines.keep_while(
            lambda line: _step_of(line) <= step
        )  # steps only grow along the file
        self._events.forget_after(step)
        self._warn_once()

    def close(self) -> None:
        """Finish writing; takes ten seconds at most, whatever the disk does."""
        self._lines.close()
        self._events.close()
        self._warn_once()

    def _warn_once(self) -> None:
        if self.trouble and not self._warned:
            self._warned = True
            warnings.warn(f"{self.trouble} Training goes on.", stacklevel=3)


def _step_of(line: bytes) -> float:
    """Of a line that is not whole, one before all others: what comes after it may be."""
    entry = parse_line(line)
    return -math.inf if entry is None else float(entry["env_steps"])


@functools.cache
def _hush_writers() -> None:
    """Have TensorBoard's writing threads die without a traceback: a later call tells why."""
    told_before = threading.excepthook

    def tell(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            told_before(args)

    threading.excepthook = tell


class _Events:
    """TensorBoard's file of the same scalars.

    Its writer has a thread of its own, which ends at the first error; that shows at a later call.
    Such a writer is dropped, and after a while another tries its luck with a new file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: str | None = None
        self._writer: Any = None
        self._purge_step: int | None = None
        self._retry_at = 0.0
        # In a thread, as it takes a while, and the first steps of a run mostly wait for a device.
        threading.Thread(target=_import_writer, name="stoker-import", daemon=True).start()

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._writer is not None and self._write(step, scalars):
            return
        # A writer's thread may have died long ago; whether a new one can write says how it is now.
        if time.monotonic() >= self._retry_at and not self._write(step, scalars):
            self._retry_at = time.monotonic() + _RETRY_S

    def forget_after(self, step: int) -> None:
        """Have TensorBoard hide what was recorded past `step`."""
        self.close()
        self._purge_step = step + 1

    def close(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        errors: list[Exception] = []

        def finish() -> None:
            try:
                writer.close()
            except Exception as error:
                errors.append(error)

        # In a thread, because a disk that hangs would hang the writer's own wait for its thread.
        closing = threading.Thread(target=finish, name="stoker-close-events", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            errors.append(TimeoutError(f"not finished after {_CLOSE_S:.0f} s"))
        if errors:
            self._drop(errors[0])

    def _write(self, step: int, scalars: Mapping[str, float]) -> bool:
        """Whether the writer took the scalars (or there is none to take them)."""
        # Any error: TensorBoard raises its own kinds too, and none is worth a training run.
        try:
            writer = self._opened()
            if writer is not None:
                for name, value in scalars.items():
                    writer.add_scalar(name, value, step)
                self.trouble = None
        except Exception as error:
            self._drop(error)
            return False
        return True

    def _opened(self) -> Any:
        """The writer, made when first needed; None where TensorBoard is not installed."""
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                self._retry_at = math.inf
                warnings.warn(
                    f"No TensorBoard files will be written ({error}); metrics.jsonl has it all. "
                    "To have them: pip install tensorboard",
                    stacklevel=5,
                )
                return None
            # The writer would make the folder; a run that was deleted stays so.
            if not self.path.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            _hush_writers()
            # The queue is long so that a slow disk does not hold up training.
            self._writer = SummaryWriter(
                str(self.path), purge_step=self._purge_step, max_queue=10_000, flush_secs=10
            )
            self._purge_step = None
        return self._writer

    def _drop(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self.trouble = f"Cannot write TensorBoard events in {self.path}: {reason}."
        self._writer = None


def _import_writer() -> None:
    with contextlib.suppress(ImportError):  # which is said where the writer is needed
        importlib.import_module("torch.utils.tensorboard")
