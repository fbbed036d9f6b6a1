"""Writing checkpoints: at once, or beside the training where there is much to write."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from stoker.errors import CheckpointError
from stoker.runs import checkpoint as checkpoints
from stoker.runs.checkpoint import Checkpoint
from stoker.train.snapshot import Snapshot


class Saved(NamedTuple):
    """What came of a checkpoint."""

    step: int
    written: bool
    trouble: str | None
    """What went wrong, also where it was written all the same."""


class Saver:
    """Writes a run's checkpoints into one folder, one after the other, and removes older ones."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._kept = folder, keep
        self._pending: Future[Saved] | None = None

    def begin(self, step: int, whole: Checkpoint, best_step: int | None) -> None:
        """Write a checkpoint, once the one before is written; the best is not removed.

        One with a replay is written by a thread of its own, from a copy of all else.
        """
        assert self._pending is None, "the last one was not heard of"
        pending: Future[Saved] = Future()
        best = None if best_step is None else self._path(best_step)
        if isinstance(whole.rows, Snapshot):
            tensors = {k: v.detach().to("cpu", copy=True) for k, v in whole.tensors.items()}
            given = (pending, step, whole._replace(tensors=tensors), best)
            whole.rows.hold()
            try:
                threading.Thread(target=self._keep, args=given, name="saver", daemon=True).start()
            except BaseException:
                whole.rows.release()
                raise
        else:
            self._keep(pending, step, whole, best)
        self._pending = pending

    def heard(self, wait: bool = False) -> Saved | None:
        """What came of the last checkpoint, told once; None while it is being written."""
        pending = self._pending
        if pending is None or not (wait or pending.done()):
            return None
        self._pending = None
        return pending.result()

    def _keep(
        self, pending: Future[Saved], step: int, whole: Checkpoint, best: Path | None
    ) -> None:
        try:
            try:
                saved = self._write(step, whole, best)
            finally:
                if isinstance(whole.rows, Snapshot):
                    whole.rows.release()  # before anybody hears of it, and holds another
        except BaseException as error:  # raised by whoever hears of it
            pending.set_exception(error)
        else:
            pending.set_result(saved)

    def _path(self, step: int) -> Path:
        return self._folder / checkpoints.step_name(step)

    def _write(self, step: int, whole: Checkpoint, best: Path | None) -> Saved:
        try:
            checkpoints.save(self._path(step), whole)
        except CheckpointError as error:
            return Saved(step, False, str(error))
        try:
            checkpoints.prune(self._folder, self._kept, best)
        except OSError as error:
            return Saved(step, True, f"Old checkpoints stay: {error}.")
        return Saved(step, True, None)
